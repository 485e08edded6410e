"""Health check of a container: exits with 0 if the service on the port given as argument can serve."""

import sys
import urllib.request

urllib.request.urlopen(f"http://127.0.0.1:{int(sys.argv[1])}/readyz", timeout=8).close()
