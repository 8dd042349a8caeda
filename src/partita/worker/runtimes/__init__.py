"""What executes a model, behind one small interface."""
