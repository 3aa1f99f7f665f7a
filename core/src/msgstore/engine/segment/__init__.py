"""Segments: the files of one store directory, the current segment's writing end, hint files, erasing.

``Segments`` owns all ``Segment`` objects and open descriptors. It knows files, sizes and counts, and no messages. Which
records are alive is in ``engine.state.accounting``; the layout of records is the format plugin's.
"""
