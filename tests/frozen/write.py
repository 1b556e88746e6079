"""Write the frozen texts anew, after a change that means to change them."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import test_frozen

if __name__ == "__main__":
    test_frozen.write()
