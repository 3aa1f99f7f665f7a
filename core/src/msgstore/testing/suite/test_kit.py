"""Every class of the kit. Each is run for the descriptors of its kind that the distribution registers.

Their names: ``TestDescriptor`` of ``DescriptorTests``, and so on.
"""

import msgstore.testing

for _name in msgstore.testing.__all__:
    if _name.endswith("Tests") and _name != "KitTests":
        _class = f"Test{_name.removesuffix('Tests')}"
        globals()[_class] = type(_class, (getattr(msgstore.testing, _name),), {"__module__": __name__})
