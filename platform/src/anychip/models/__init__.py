"""Model families as config classes and modules. Names no vendor and reads no file."""
