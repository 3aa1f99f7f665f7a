"""The policies and codecs that core brings along; they register through the hooks that everybody uses."""
