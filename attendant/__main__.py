"""`python -m attendant` is the command `attendant`."""

import sys

from attendant.cli import main

sys.exit(main())
