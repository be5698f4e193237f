package target

import (
	"cmp"
	"flag"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// badField has values of a field that a controller does not support: reserved values, values of
// unsupported functions, and values out of range. TestReserved tests reserved bits.
type badField struct {
	field              string // and the section that says so
	dword, shift, bits int
	values             []uint32
	want               nvme.Status
}

// badFields reads the bad fields of each sample, and of some kinds of samples.
func badFields(t *testing.T) map[string][]badField {
	t.Helper()
	table := map[string][]badField{}
	for _, row := range testutil.Rows(t, "bad_fields") {
		var samples, values string
		var f badField
		row.Scan(&samples, &f.field, &f.dword, &f.shift, &f.bits, &values,
			testutil.Named(&f.want, map[string]nvme.Status{
				"InvalidField": invalidField, "LBAOutOfRange": outOfRange,
				"DataSGLLengthInvalid": invalidLength,
				"FeatureNotSaveable":   nvme.FeatureNotSaveable | nvme.DNR,
				"KATOInvalid":          nvme.KATOInvalid | nvme.DNR,
				"CommandSetsRejected":  nvme.CommandSetsRejected | nvme.DNR,
				"HostIDInconsistent":   nvme.HostIDInconsistent | nvme.DNR,
			}))
		for word := range strings.FieldsSeq(values) { // a value, or a range
			first, last, _ := strings.Cut(word, "..")
			end := testutil.Value(strconv.ParseUint(cmp.Or(last, first), 0, 32))(t)
			for v := testutil.Value(strconv.ParseUint(first, 0, 32))(t); v <= end; v++ {
				f.values = append(f.values, uint32(v))
			}
		}
		testutil.MustTrue(t, len(f.values) > 0 == (f.field != "none"), "values of %s", samples)
		for sample := range strings.SplitSeq(samples, ", ") {
			table[sample] = append(table[sample], f)
		}
	}
	return table
}

// TestUnsupported: each field of each command with values that are not supported.
func TestUnsupported(t *testing.T) {
	table, used := badFields(t), map[string]bool{}
	eachSample(t, func(t *testing.T, s sent) {
		list, known := table[s.name]
		kind := ""
		if !s.io {
			kind = s.name[:max(0, strings.LastIndexByte(s.name, ' '))]
		}
		testutil.MustTrue(t, known || kind == "get feature", "the table has no row of it")
		used[s.name], used[kind] = true, true
		for _, f := range slices.Concat(table[kind], list) {
			for _, v := range f.values {
				st := s.send(func(sqe *nvme.SQE) {
					mask := allBits >> (32 - f.bits) << f.shift
					sqe.SetCDW(f.dword, sqe.CDW(f.dword)&^mask|v<<f.shift&mask)
				})
				testutil.Equal(t, st, f.want, "%s: %#x", f.field, v)
			}
		}
	})
	part := strings.Contains(flag.Lookup("test.run").Value.String(), "/") // of the samples
	for sample := range table {
		testutil.True(t, used[sample] || part, "there is no sample %s", sample)
	}
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
