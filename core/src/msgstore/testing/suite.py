"""The kit as a suite: ``pytest --pyargs msgstore.testing.suite --msgstore-dist NAME``.

Every class of the kit, run for the descriptors of its kind that the distribution registers. ``TestDescriptor`` is made of
``DescriptorTests``, and so on.
"""

import msgstore.testing

for _name in msgstore.testing.__all__:
    if _name.endswith("Tests") and _name != "KitTests":
        _class = f"Test{_name.removesuffix('Tests')}"
        globals()[_class] = type(_class, (getattr(msgstore.testing, _name),), {"__module__": __name__})
