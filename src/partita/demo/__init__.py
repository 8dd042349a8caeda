"""The demo: small real models, profiled, planned, served and asked, in about a minute."""
