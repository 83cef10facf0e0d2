"""Languages by their codes: ISO 639-1, the one of three letters, and the English name."""

from __future__ import annotations

import re
from collections.abc import Iterable

TABLE = """
af afr Afrikaans|am amh Amharic|ar ara Arabic|ar arb Arabic|as asm Assamese|az aze Azerbaijani|az azj Azerbaijani
be bel Belarusian|bg bul Bulgarian|bn ben Bengali|br bre Breton|bs bos Bosnian|ca cat Catalan|cs ces Czech|cy cym Welsh
da dan Danish|de deu German|dz dzo Dzongkha|el ell Greek|en eng English|eo epo Esperanto|es spa Spanish
et est Estonian|et ekk Estonian|eu eus Basque|fa fas Persian|fa pes Persian|fi fin Finnish|fo fao Faroese|fr fra French
fy fry Western Frisian|ga gle Irish|gd gla Scottish Gaelic|gl glg Galician|gu guj Gujarati|ha hau Hausa|he heb Hebrew
hi hin Hindi|hr hrv Croatian|ht hat Haitian Creole|hu hun Hungarian|hy hye Armenian|id ind Indonesian|ig ibo Igbo
is isl Icelandic|it ita Italian|ja jpn Japanese|jv jav Javanese|ka kat Georgian|kk kaz Kazakh|km khm Khmer
kn kan Kannada|ko kor Korean|ku kur Kurdish|ku kmr Kurdish|ky kir Kyrgyz|la lat Latin|lb ltz Luxembourgish
lg lug Ganda|ln lin Lingala|lo lao Lao|lt lit Lithuanian|lv lav Latvian|lv lvs Latvian|mg mlg Malagasy
mg plt Malagasy|mk mkd Macedonian|ml mal Malayalam|mn mon Mongolian|mn khk Mongolian|mr mar Marathi|ms msa Malay
ms zsm Malay|mt mlt Maltese|my mya Burmese|ne nep Nepali|ne npi Nepali|nl nld Dutch|nn nno Norwegian Nynorsk
no nor Norwegian|nb nob Norwegian Bokmål|oc oci Occitan|om orm Oromo|om gaz Oromo|or ori Odia|or ory Odia|pa pan Punjabi
pl pol Polish|ps pus Pashto|ps pbt Pashto|pt por Portuguese|qu que Quechua|ro ron Romanian|ru rus Russian
rw kin Kinyarwanda|sa san Sanskrit|sd snd Sindhi|si sin Sinhala|sk slk Slovak|sl slv Slovenian|sn sna Shona
so som Somali|sq sqi Albanian|sq als Albanian|sr srp Serbian|st sot Southern Sotho|su sun Sundanese|sv swe Swedish
sw swa Swahili|sw swh Swahili|ta tam Tamil|te tel Telugu|tg tgk Tajik|th tha Thai|tk tuk Turkmen|tl tgl Tagalog
tr tur Turkish|tt tat Tatar|ug uig Uyghur|uk ukr Ukrainian|ur urd Urdu|uz uzb Uzbek|uz uzn Uzbek|vi vie Vietnamese
wo wol Wolof|xh xho Xhosa|yi yid Yiddish|yi ydd Yiddish|yo yor Yoruba|zh zho Chinese|zh cmn Chinese|zu zul Zulu
"""
ROWS = [row.strip().split(" ", 2) for row in re.split(r"[|\n]", TABLE.strip())]
SHORT = {long: short for short, long, _ in ROWS}
NAMES = {short: name for short, _, name in ROWS}


def short_code(code: str) -> str:
    """The code of ISO 639 in a model's own one: `deu_Latn`, `de_DE` and `de` are `de`; others as they are."""
    language = re.split("[-_]", code.strip("_<>"), maxsplit=1)[0].lower()
    return SHORT.get(language, language)


def language_name(code: str) -> str:
    """The English name, or the code where there is none here."""
    name = NAMES.get(short_code(code))
    rest = re.split("[-_]", code, maxsplit=1)[1:]
    return code if name is None else f"{name} ({rest[0]})" if rest else name


def public_codes(codes: Iterable[str]) -> dict[str, str]:
    """What a client may call each of a model's codes: the short code, where it means that one alone."""
    found: dict[str, list[str]] = {}
    for code in codes:
        found.setdefault(short_code(code), []).append(code)
    return {short if len(own) == 1 else code: code for short, own in found.items() for code in own}
