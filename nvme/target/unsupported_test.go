package target

import (
	"cmp"
	"slices"
	"strings"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/target/admin"
)

// badField has values of a field that a controller does not support: reserved values, values of
// unsupported functions, and values out of range. TestReserved tests reserved bits.
type badField struct {
	field       string // and the section that says so
	dword       int
	shift, bits int
	values      []uint32
	want        nvme.Status
}

// upTo are the numbers from one to another.
func upTo(first, last uint32) (list []uint32) {
	for v := first; v <= last; v++ {
		list = append(list, v)
	}
	return list
}

var (
	one      = []uint32{1}
	most     = []uint32{allBits}
	otherCSI = badField{
		"CSI: other command sets (Base 5.1.13.1)", 0, 24, 8, upTo(1, 255), invalidField,
	}
	reservedCSI = badField{
		"CSI: no command set (Base figure 311)", 0, 24, 8, upTo(5, 255), invalidField,
	}
)

func (f badField) at(dword int) badField {
	f.dword = dword
	return f
}

// badFields has the bad fields of each sample. All rows of some kinds share the fields of "log",
// "get feature" and "set feature". nil: each value is supported, or there are none.
var badFields = map[string][]badField{
	"CNS 00h": nil, "CNS 01h": nil, "CNS 02h": nil, "CNS 03h": nil, "CNS 08h": nil, "CNS 10h": nil,
	"CNS 11h": nil, "CNS 12h": nil, "CNS 13h": nil, "CNS 19h": nil,
	"CNS 05h": {otherCSI.at(11)}, "CNS 06h": {otherCSI.at(11)}, "CNS 07h": {otherCSI.at(11)},
	"CNS 1Ch": {
		{"CNTID: no controller (Base 5.1.13.2.19)", 10, 16, 16, []uint32{0xFFF0}, invalidField},
	},

	"log": {
		{"LPO: no dword (Base 5.1.12)", 12, 0, 2, upTo(1, 3), invalidField},
		{"OT: no index offsets (Base 5.1.12)", 14, 23, 1, one, invalidField},
		{"NUMDU: above MDTS (Base 5.1.12)", 11, 0, 16, []uint32{0xFFFF}, invalidField},
	},
	"log 00h": {beyondLog}, "log 01h": {beyondLog}, "log 02h": {beyondLog}, "log 03h": {beyondLog},
	"log 04h": {beyondLog}, "log 05h": {beyondLog, reservedCSI.at(14)}, "log 06h": {beyondLog},
	"log 07h": {halfBlock}, "log 08h": {halfBlock}, "log 09h": {beyondLog, noGroup},
	"log 0Ch": {beyondLog}, "log 12h": {beyondLog}, "log 13h": {beyondLog},
	"log 16h": {beyondLog, noGroup}, "log 70h": nil, "log 80h": {beyondLog},

	"get feature": {
		{"SEL: reserved (Base 5.1.11)", 10, 8, 3, upTo(4, 7), invalidField},
	},
	"set feature": {
		{
			"SV: nothing is saved (Base 5.1.25.1)", 10, 31, 1, one,
			nvme.FeatureNotSaveable | nvme.DNR,
		},
	},
	"get feature 04h": {
		{"TMPSEL: no such sensor (Base 5.1.25.1.3)", 11, 16, 4, upTo(1, 15), invalidField},
		{"THSEL: reserved (Base 5.1.25.1.3)", 11, 20, 2, upTo(2, 3), invalidField},
	},
	"get feature 09h": {{"IV: no vector (Base 5.1.25.2.3)", 11, 0, 16, one, invalidField}},
	"get feature 81h": {
		{"EXHID: not of 64 bits (Base 5.1.25.1.28)", 11, 0, 1, []uint32{0}, invalidField},
	},
	"set feature 01h": nil,
	"set feature 02h": {
		{"PS: no such power state (Base 5.1.25.1)", 11, 0, 5, upTo(1, 31), invalidField},
	},
	"set feature 04h": {
		{"TMPSEL: no such sensor (Base 5.1.25.1.3)", 11, 16, 4, upTo(1, 14), invalidField},
		{"THSEL: reserved (Base 5.1.25.1.3)", 11, 20, 2, upTo(2, 3), invalidField},
	},
	"set feature 05h": {
		{"DULBE: NSFEAT bit 2 is 0 (NVM 4.1.3)", 11, 16, 1, one, invalidField},
	},
	"set feature 06h": nil,
	"set feature 07h": {
		{"NSQR: reserved (Base 5.1.25.2.1)", 11, 0, 16, []uint32{0xFFFF}, invalidField},
		{"NCQR: reserved (Base 5.1.25.2.1)", 11, 16, 16, []uint32{0xFFFF}, invalidField},
	},
	"set feature 08h": nil,
	"set feature 09h": nil,
	"set feature 0Ah": nil,
	"set feature 0Bh": {
		{"events not in OAES (Base 5.1.25.1.5)", 11, 9, 2, upTo(1, 3), invalidField},
		{"events not in OAES (Base 5.1.25.1.5)", 11, 12, 19, one, invalidField},
	},
	"set feature 0Eh": nil,
	"set feature 0Fh": {
		{
			"KATO: too large (Base 4.2.3.1)", 11, 0, 32,
			[]uint32{admin.MaxKeepAlive + 1, allBits},
			nvme.KATOInvalid | nvme.DNR,
		},
	},
	"set feature 16h": nil,
	"set feature 19h": {
		{
			"IOCSCI: no such combination (Base 5.1.25.1.17)", 11, 0, 9, upTo(1, 511),
			nvme.CommandSetsRejected | nvme.DNR,
		},
	},
	"set feature 1Ah": {
		{"spinup control: not supported (Base 5.1.25.1.18)", 11, 0, 1, one, invalidField},
	},
	"set feature 81h": nil,
	"set feature 82h": {
		{"no such notification (Base 5.1.25.1.29)", 11, 0, 1, one, invalidField},
		{"no such notification (Base 5.1.25.1.29)", 11, 4, 28, one, invalidField},
	},
	"set feature 83h": {{"PTPL (Base 5.1.25.1.30)", 11, 1, 31, one, invalidField}},
	"set feature 84h": {
		{"permanent, and reserved (Base 5.1.25.1.31)", 11, 0, 3, upTo(3, 7), invalidField},
	},

	"Abort": nil, "Keep Alive": nil,
	"Device Self-test": {
		{"STC: reserved, or not supported (Base 5.1.5)", 10, 0, 4, upTo(3, 14), invalidField},
		{"STC: reserved (Base 5.1.5)", 10, 0, 4, []uint32{0}, invalidField},
	},

	"Flush": nil, "Read": {beyondEnd}, "Compare": {beyondEnd}, "Verify": {beyondEnd},
	"Write": {beyondEnd, directive}, "Write Zeroes": {beyondEnd}, "Dataset Management": nil,
	"Copy": {
		beyondEnd, directive,
		{"DESFMT: not in CDFS (NVM 3.3.2)", 12, 8, 4, append(upTo(3, 15), 1), invalidField},
		{"DESFMT: not in CDFE (Base 5.1.25.1.14)", 12, 8, 4, []uint32{2}, invalidField},
		{"NR: no such data (NVM 3.3.2)", 12, 0, 8, []uint32{1, 255}, invalidLength},
	},
	"Reservation Register": {
		{"RREGA: reserved (Base 7.6)", 10, 0, 3, upTo(3, 7), invalidField},
		{"CPTPL: reserved (Base 7.6)", 10, 30, 2, one, invalidField},
	},
	"Reservation Acquire": {
		{"RACQA: reserved (Base 7.5)", 10, 0, 3, upTo(3, 7), invalidField},
		{"IEKEY (Base 7.5)", 10, 3, 1, one, invalidField},
		{"RTYPE: reserved (Base 7.5)", 10, 8, 8, append(upTo(7, 255), 0), invalidField},
	},
	"Reservation Release": {
		{"RRELA: reserved (Base 7.7)", 10, 0, 3, upTo(2, 7), invalidField},
		{"IEKEY (Base 7.7)", 10, 3, 1, one, invalidField},
	},
	"Reservation Report": {
		{
			"EDS: identifiers have 128 bits (Base 7.8)", 11, 0, 1,
			[]uint32{0},
			nvme.HostIDInconsistent | nvme.DNR,
		},
		{"NUMD: above MDTS (Base 7.8)", 10, 0, 32, most, invalidField},
	},
}

var (
	beyondLog = badField{
		"LPO: beyond the end (Base 5.1.12)", 13, 0, 32, []uint32{1, allBits}, invalidField,
	}
	halfBlock = badField{
		"LPO: no telemetry block (Base 5.1.12.1.8)", 12, 0, 9, []uint32{4, 256}, invalidField,
	}
	noGroup = badField{
		"LSI: no endurance group (Base 5.1.12.1.10)", 11, 16, 16,
		[]uint32{0, 77, 0xFFFF},
		invalidField,
	}
	beyondEnd = badField{
		"SLBA: beyond the end (NVM 3.3)", 11, 0, 32, []uint32{1, allBits}, outOfRange,
	}
	directive = badField{"DTYPE: no directives (Base 8.1.8)", 12, 20, 4, upTo(1, 15), invalidField}
)

// TestUnsupported: each field of each command with values that are not supported.
func TestUnsupported(t *testing.T) {
	eachSample(t, func(t *testing.T, s sent) {
		list, known := badFields[s.name]
		kind := ""
		if !s.io {
			kind = s.name[:max(0, strings.LastIndexByte(s.name, ' '))]
		}
		testutil.MustTrue(t, known || kind == "get feature", "the table has no row of it")
		for _, f := range slices.Concat(badFields[kind], list) {
			for _, v := range f.values {
				st := s.send(func(sqe *nvme.SQE) {
					mask := allBits >> (32 - f.bits) << f.shift
					sqe.SetCDW(f.dword, sqe.CDW(f.dword)&^mask|v<<f.shift&mask)
				})
				testutil.Equal(t, st, f.want, "%s: %#x", f.field, v)
			}
		}
	})
}

// TestStates: each command for the controller while that is not enabled, or is shut down (Base
// sections 3.1.4.5 and 3.6.2).
func TestStates(t *testing.T) {
	r := newHarness(t, 1, ramSubsystem(t, 1))
	for _, nqn := range []string{testSub, nvme.DiscoveryNQN} {
		h := r.connectHost(0, on(nqn))
		list := samples(r.target.find(nqn).lookup(h.cntlid))
		for state, cc := range controllerStates {
			r.ok(h.admin, propertySetCommand(nvme.PropertyCC, 0))
			if state == "enabled" {
				continue // see the other tests
			}
			if cc != 0 {
				r.ok(h.admin, propertySetCommand(nvme.PropertyCC, uint64(cc)))
			}
			for _, s := range list {
				if !s.io {
					r.run(state+" "+s.name, func(*testing.T) {
						r.status(h.admin, s.command(), sequenceError)
					})
				}
			}
		}
	}
}

// TestANASamples: each command while its namespace is not accessible (Base section 8.1.1.10).
func TestANASamples(t *testing.T) {
	// Features of a namespace that is not accessible; 84h is refused in one state only.
	accesses := []string{
		"get feature 05h", "get feature 82h", "get feature 83h",
		"set feature 05h", "set feature 82h", "set feature 83h",
	}
	usual := map[string]nvme.Status{}
	for _, state := range []nvme.ANAState{
		nvme.ANAStateOptimized, nvme.ANAStateNonOptimized, nvme.ANAStateInaccessible,
		nvme.ANAStateChange, nvme.ANAStatePersistentLoss,
	} {
		eachSample(t, func(t *testing.T, s sent) {
			testutil.Must(t, s.target.SetANAStates(1, states{1: state}))
			st := s.send(func(sqe *nvme.SQE) {
				if s.nsid[1] == good {
					sqe.SetNSID(nsidClasses[1])
				}
			})
			if state == nvme.ANAStateOptimized {
				usual[s.kind+s.name] = st
			}
			want := usual[s.kind+s.name]
			if s.io || slices.Contains(accesses, s.name) ||
				s.name == "set feature 84h" && state == nvme.ANAStatePersistentLoss {
				want = cmp.Or(anaStatuses[state], want)
			}
			testutil.Equal(t, st, want, "%v", state)
		})
	}
}
