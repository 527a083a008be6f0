"""`python -m policyloop` is `policyloop`."""

from policyloop.cli import main

main()
