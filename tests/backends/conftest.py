"""Makes the test-only backends importable, here and in the children of engines."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
