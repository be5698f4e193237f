package doctor

import (
	"fmt"
	"maps"
	"net/netip"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// checks are the checks named in sequences.
var checks = map[string]func(Machine, Target) []Finding{
	"clock": Machine.clock, "governor": Machine.governor, "isolation": Machine.isolation,
	"cores": Machine.cores, "numa": Machine.numa, "memlock": Machine.memlock,
	"io_uring": Machine.ioUring, "listeners": Machine.listeners, "control": Machine.control,
	"state": Machine.state, "rdma-files": Machine.rdmaFiles, "rdma-ports": Machine.rdmaPorts,
	"multipath": Machine.multipath, "host-names": Machine.hostNames, "udev": Machine.udev,
}

// TestSequences carries out testdata/sequences, described in testdata/README.md.
func TestSequences(t *testing.T) {
	datadriven.Walk(t, "testdata/sequences", func(t *testing.T, path string) {
		var base files
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			list := changed(t, base, d.Input)
			if d.Cmd == "machine" {
				base = list
				return ""
			}
			run := checks[d.Cmd]
			testutil.MustTrue(t, run != nil, "%s: unknown check %s", d.Pos, d.Cmd)
			m, at, find := machine(t, list), Target{}, ""
			for _, arg := range d.CmdArgs {
				value := strings.Join(arg.Vals, ",")
				switch arg.Key {
				case "reactors":
					for _, v := range arg.Vals {
						at.Reactors = append(at.Reactors, testutil.Value(strconv.Atoi(v))(t))
					}
				case "rdma":
					at.RDMA = true
				case "device":
					at.RDMA, at.Device = true, true
				case "soft":
					at.RDMA, at.Soft = true, true
				case "iwarp":
					at.RDMA, at.Soft, at.IWARP = true, true, true
				case "memory":
					at.Memory = testutil.Value(strconv.ParseInt(value, 10, 64))(t)
				case "limit":
					limit := testutil.Value(strconv.ParseUint(value, 10, 64))(t)
					m.Memlock = func() (uint64, bool) { return limit, true }
				case "errno":
					errno := map[string]error{"EPERM": unix.EPERM, "ENOSYS": unix.ENOSYS}[value]
					m.IOUring = func() error { return errno }
				case "tcp":
					addr := testutil.Value(netip.ParseAddrPort(value))(t)
					at.Listeners = append(at.Listeners, Listener{"tcp " + value, addr})
				case "sockets":
					at.Sockets = arg.Vals
				case "state":
					at.StateDir = value
				case "find":
					find = value
				default:
					t.Fatalf("%s: unknown argument %s", d.Pos, arg.Key)
				}
			}
			var out strings.Builder
			for _, f := range run(m, at) {
				bad := f.Severity != OK
				testutil.True(t, f.Check != "" && (f.Why != "") == bad && (f.Fix != "") == bad,
					"%s: incomplete: %+v", d.Pos, f)
				text := fmt.Sprintf("%s: %s: %s\n", f.Severity, f.Check, f.Found)
				for _, more := range []string{f.Why, f.Fix} {
					if more != "" {
						text += "    " + strings.ReplaceAll(more, "\n", "\n    ") + "\n"
					}
				}
				if strings.Contains(text, find) {
					out.WriteString(text)
				}
			}
			return out.String()
		})
	})
}

// changed returns files with changes: "NAME = CONTENT", "NAME -> TARGET" for a symbolic link, or
// "no NAME".
func changed(t *testing.T, list files, changes string) files {
	list = maps.Clone(list)
	if list == nil {
		list = files{}
	}
	for line := range strings.Lines(changes) {
		line = strings.TrimSuffix(line, "\n")
		if name, ok := strings.CutPrefix(line, "no "); ok {
			delete(list, name)
		} else if name, target, ok := strings.Cut(line, " -> "); ok {
			list[name] = "->" + target
		} else if name, text, ok := strings.Cut(line, " ="); ok {
			list[name] = strings.ReplaceAll(strings.TrimPrefix(text, " "), `\n`, "\n")
		} else {
			t.Fatalf("%q changes no file", line)
		}
	}
	return list
}
