"""The machines and the planning of the live server under a fake clock, with a profile as service times."""
