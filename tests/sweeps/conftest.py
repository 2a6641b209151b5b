"""Makes the functions of the fake points importable, here and in the processes of points."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
