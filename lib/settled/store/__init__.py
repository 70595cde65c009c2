"""The store: all SQL, and the one guarded writer. No floor above knows which database it is."""
