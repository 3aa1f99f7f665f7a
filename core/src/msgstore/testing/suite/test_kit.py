"""Every class of the kit. Each is run for the descriptors of its kind that the distribution registers."""

from msgstore.testing import (
    BodyCodecTests,
    CombinationTests,
    DescriptorTests,
    GcPolicyTests,
    IndexTests,
    ObserverTests,
    RecordTypeTests,
    SegmentFormatTests,
)


class TestDescriptor(DescriptorTests):
    pass


class TestSegmentFormat(SegmentFormatTests):
    pass


class TestRecordType(RecordTypeTests):
    pass


class TestIndex(IndexTests):
    pass


class TestGcPolicy(GcPolicyTests):
    pass


class TestBodyCodec(BodyCodecTests):
    pass


class TestObserver(ObserverTests):
    pass


class TestCombination(CombinationTests):
    pass
