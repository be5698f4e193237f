package nvme

// SelfTestSQE is a Device Self-test command (Base section 5.1.5).
type SelfTestSQE SQE

// SelfTest views s as a Device Self-test command.
func (s *SQE) SelfTest() *SelfTestSQE { return (*SelfTestSQE)(s) }

// STC is the self-test code (CDW10 bits 3:0).
func (s *SelfTestSQE) STC() SelfTestCode { return SelfTestCode(s[40] & 0xF) }

// SelfTestCode is the operation requested by a Device Self-test command, or described in the log.
type SelfTestCode uint8

// The codes. There is no operation with the code 0.
const (
	SelfTestShort    SelfTestCode = 0x1
	SelfTestExtended SelfTestCode = 0x2
	SelfTestAbort    SelfTestCode = 0xF
)

// SelfTestOutcome is the outcome of an operation (Base section 5.1.12.1.7, bits 3:0 of DSTS).
type SelfTestOutcome uint8

// The outcomes.
const (
	SelfTestPassed           SelfTestOutcome = 0x0
	SelfTestAborted          SelfTestOutcome = 0x1 // by a Device Self-test command
	SelfTestReset            SelfTestOutcome = 0x2 // aborted by a Controller Level Reset
	SelfTestNamespaceRemoved SelfTestOutcome = 0x3
	SelfTestSegmentFailed    SelfTestOutcome = 0x7 // SEGN is the first that failed
	SelfTestAbortedOther     SelfTestOutcome = 0x8 // for an unknown reason
	SelfTestUnused           SelfTestOutcome = 0xF // there is no result
)

// SelfTestResult is a Self-test Result data structure.
type SelfTestResult struct {
	DSTS   uint8 // the code in bits 7:4, the outcome in bits 3:0
	SEGN   uint8
	VDINFO SelfTestValid
	_      uint8
	POH    uint64 // power on hours when it ended
	NSID   uint32
	FLBA   uint64
	SCT    uint8
	SC     uint8
	VS     [2]byte
}

// SelfTestValid has a bit for each optional field of a SelfTestResult that is valid.
type SelfTestValid uint8

// The bits of SelfTestValid.
const (
	SelfTestValidNSID SelfTestValid = 1 << 0
	SelfTestValidFLBA SelfTestValid = 1 << 1
	SelfTestValidSCT  SelfTestValid = 1 << 2
	SelfTestValidSC   SelfTestValid = 1 << 3
)

// SelfTestResults is the number of results in the log, SelfTestLogSize the size of the log.
const (
	SelfTestResults = 20
	SelfTestLogSize = 564
)

// SelfTestLog is the Device Self-test log, LID 06h (Base section 5.1.12.1.7).
type SelfTestLog struct {
	Operation  SelfTestCode // in progress; 0: none
	Completion uint8        // percent of it
	_          [2]byte
	Results    [SelfTestResults]SelfTestResult // newest first
}
