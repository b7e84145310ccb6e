"""`python -m cloud_verifier.door SETTINGS`: started by `cloud_verifier.door.supervisor`, not by hand."""

import sys

from cloud_verifier.door.process import main

sys.exit(main(sys.argv[1:]))
