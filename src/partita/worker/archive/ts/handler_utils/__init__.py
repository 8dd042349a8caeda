"""What handlers use around their stages."""
