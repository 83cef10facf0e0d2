from service.api import BundleError as BundleError
from service.api import DeadlineError as DeadlineError
from service.api import Hypothesis as Hypothesis
from service.api import InvalidFieldError as InvalidFieldError
from service.api import Model as Model
from service.api import NextToken as NextToken
from service.api import NotReadyError as NotReadyError
from service.api import Output as Output
from service.api import Score as Score
from service.api import ScoredToken as ScoredToken
from service.api import SettingsError as SettingsError
from service.api import StartError as StartError
from service.api import TokenProbability as TokenProbability

__version__: str

def main(arguments: list[str] | None = None) -> int: ...
