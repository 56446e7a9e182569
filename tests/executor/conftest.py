from __future__ import annotations

import sys
from pathlib import Path

# Test modules are imported one by one, so a module beside them is found this way only.
sys.path.insert(0, str(Path(__file__).parent))
