"""`python -m label_server PREFS_DB RUN_FOLDER SOCKET`, as `launch` starts it; the socket is an open file's number."""

import socket
import sys
from pathlib import Path

from label_server.server import serve

serve(Path(sys.argv[1]), Path(sys.argv[2]), socket.socket(fileno=int(sys.argv[3])))
