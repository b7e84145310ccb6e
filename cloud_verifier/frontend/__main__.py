"""`python -m cloud_verifier.frontend SETTINGS`: started by `cloud_verifier.frontend.supervisor`, not by hand."""

import sys

from cloud_verifier.frontend.process import main

sys.exit(main(sys.argv[1:]))
