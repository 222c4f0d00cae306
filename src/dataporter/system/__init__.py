"""What the operating system gives: memory, processes, signals, files. No torch is imported here."""
