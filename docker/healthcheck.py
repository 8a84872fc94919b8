"""Ends with 0 if the gateway in this container can reach what it stands before, in time."""

import json
import os
import sys
import urllib.request

url = os.environ.get("GRIDWEAVE_HEALTH_URL", "http://127.0.0.1:8765/readyz")
try:
    with urllib.request.urlopen(url, timeout=6) as answer:
        print(json.load(answer))
except (OSError, ValueError) as error:
    sys.exit(f"{url}: {error}")
