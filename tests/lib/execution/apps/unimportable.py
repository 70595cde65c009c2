raise ImportError("no such\ndriver")
