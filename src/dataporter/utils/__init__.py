"""The state's schema (`state_dict`) and what tells one dataset from another (`fingerprint`)."""
