"""The actions of the shell. Each reads, decides in the core, does one thing, and records."""
