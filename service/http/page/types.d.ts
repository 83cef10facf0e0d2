// What the page reads of the service's answers, and what it keeps. Only the type checker reads this file.

interface Place { start: number | null; end: number | null } // in characters; null: a token without text

interface Token extends Place { id?: number; index?: number; text: string; token?: string }

interface TokenizedText { text: string; tokens: Token[] }

interface Hypothesis {
  text: string;
  tokens: string[];
  token_texts?: string[];
  logprobs: number[];
  score: number;
  finish_reason: string;
  terms_met?: { source: string | null; target: string; met: boolean }[];
  segments?: Segment[];
}

/** A part of a text that was split; places are [start, stop] in characters. */
interface Segment { source: [number, number]; target: [number, number]; cut: boolean }

interface Answer {
  outputs: { hypotheses: Hypothesis[]; detected_language?: { language: string; confidence: number }; unknown?: string[] }[];
  timing: { queue_ms: number; encode_ms: number; decode_ms: number };
  usage: { source_tokens: number; target_tokens: number };
  first: number; // ms, measured here
  all: number;
}

interface Candidate { id: number; token: string; text: string; logprob: number | null }

/** An array of values from within the model. */
interface Included { name: string; axes: string[]; places: string[]; shape: number[]; values: any }

interface Attention {
  kind: string;
  rows: "source" | "target";
  columns: "source" | "decoder_inputs";
  layers: number[];
  heads: number[];
  shape: [number, number, number, number];
  values: string;
}

interface Explained {
  source: TokenizedText;
  target: TokenizedText;
  decoder_inputs: Token[];
  steps: { id: number; text: string; logprob: number; entropy: number; alternatives: { id: number; text: string; logprob: number }[] }[];
  attention: Attention[];
  attention_precision: string;
  included: (Included & { of: string })[];
  structure: { norm: string; norm_kind: string; activation: string; score: string; positions: string; added_positions: string[] } | null;
  neighbours: { side: string; tokens: (Token & { nearest: (Token & { cosine: number })[] })[] }[];
  plane: { share: number; points: { id: number; text: string; x: number; y: number }[] };
  ablated: { text: string; tokens: string[]; logprobs: number[]; finish_reason: string; steps: Explained["steps"] };
  hypotheses: Hypothesis[] | null;
  alignment: {
    layer: number; heads: number[]; method: string; chosen_by: string; pairs: string;
    words: { source: Place; target: Place }[];
  };
  tree: TreeNode[][] | null;
  timing: { attention_ms: number };
}

interface TreeNode {
  node: number;
  parent: number;
  id: number;
  text: string;
  state: "kept" | "pruned" | "finished";
  hypothesis: number | null;
  logprob: number;
  sum: number;
  score: number | null;
}

interface Languages { source: string[]; target: string[]; default_source?: string | null; default_target?: string | null }

interface ServedModel { id: string; default?: boolean; languages?: Languages }

interface Info {
  model: string;
  version: string;
  precision: string;
  provider: string;
  threads: number;
  lanes: number;
  bundle: { name: string; sizes: Record<string, number>; special_ids: Record<string, number> };
  certificate: { drift: number };
  limits: { max_beam_size: number; max_rows: number; max_explain_values: number };
  languages: Languages;
  glossaries?: Record<string, number>;
  examples: string[];
  description?: string | null;
}

/** What is known of the model, and what was asked for the source that is shown. */
interface Session {
  answer: Answer | null;
  explained: Explained | null;
  tree: TreeNode[][] | null;
  next: { name: string; answer: { tokens: Candidate[] } } | null;
  failure: string | null;
  kinds: Map<string, Promise<Explained>>; // explanations by the request
  models: ServedModel[];
  model: string | null;
  info: Info | null;
}

/** What the address tells; state.js has the defaults. */
interface State {
  source: string; mode: string;
  beam: number; count: number; samples: number; penalty: number; temperature: number; topp: number; seed: number | null;
  model: string | null; from: string | null; to: string | null;
  terms: string; glossary: string | null; forbid: string; choices: string;
  split: string; format: string; protect: string[]; pattern: string; segment: number;
  target: string[] | null;
  tab: string;
  walk: string[] | null; done: number; t: number; p: number;
  kind: string; layer: number; head: number;
  align: string | null; step: number | null;
  off: string[]; side: string; column: number; offset: number;
  source2: string; given: string; given2: string;
  lang: string | null; theme: string | null;
}

/** A row or a column of a map that is under the pointer. */
interface Lit { row: number | null; column: number | null }

/** Where the cells of a map are. */
interface Layout { left: number; top: number; cell: number; isTurned: boolean; width: number; height: number }
