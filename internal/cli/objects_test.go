package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/nvmf-target/nvmf-target/internal/control"
	"github.com/nvmf-target/nvmf-target/internal/observed"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme"
)

// TestObjects: the request of each command.
func TestObjects(t *testing.T) {
	src, asked := source(), ""
	src.Put = func(_ context.Context, o control.Object, body []byte, _ bool) (control.Plan,
		error,
	) {
		asked = fmt.Sprintf("put %s %s", o.Path(), body)
		return control.Plan{Changes: []control.Change{{Text: "+ it"}}}, nil
	}
	src.Delete = func(_ context.Context, o control.Object, recursive, _ bool) (control.Plan,
		error,
	) {
		asked = fmt.Sprintf("delete %s %t", o.Path(), recursive)
		return control.Plan{}, nil
	}
	socket, file := serve(t, src), filepath.Join(t.TempDir(), "n.yaml")
	testutil.Must(t, os.WriteFile(file, []byte("backend: file\nsize: 1GiB\n"), 0o600))
	key := file + ".key"
	testutil.Must(t, os.WriteFile(key, []byte("a key\n"), 0o600))
	for _, test := range []struct{ line, want string }{
		{
			"subsystem create a/b --set allow_any_host=true",
			`put /v1/subsystems/a%2Fb {"allow_any_host":true}`,
		},
		{"subsystem delete a", "delete /v1/subsystems/a false"},
		{"subsystem delete a --recursive", "delete /v1/subsystems/a true"},
		{
			"namespace create a 3 -f FILE --set path=/x --set size=2",
			`put /v1/subsystems/a/namespaces/3 ` + `{"backend":"file","path":"/x","size":2}`,
		},
		{"namespace delete a 3", "delete /v1/subsystems/a/namespaces/3 false"},
		{"host allow a nqn.2026-11.h:x%2F", "put /v1/subsystems/a/hosts/nqn.2026-11.h:x%252F {}"},
		{"host deny a h", "delete /v1/subsystems/a/hosts/h false"},
		{"listener create a --set transport=tcp", `put /v1/listeners/a {"transport":"tcp"}`},
		{"listener delete [fd00::1]:4420", "delete /v1/listeners/%5Bfd00::1%5D:4420 false"},
		{"referral create a", "put /v1/referrals/a {}"},
		{"referral delete a", "delete /v1/referrals/a false"},
		{"host create h/1 --set limits.x=1", `put /v1/hosts/h%2F1 {"limits.x":1}`},
		{"host delete h", "delete /v1/hosts/h false"},
		{"host key h tls_key -f KEY", `put /v1/hosts/h/keys/tls_key {"key":"a key"}`},
		{
			"host key h dhchap_key -f KEY --old-until 2027-01-31",
			`put /v1/hosts/h/keys/dhchap_key {"key":"a key","old_keys_until":"2027-01-31"}`,
		},
		{"host key h dhchap_key --remove", "delete /v1/hosts/h/keys/dhchap_key false"},
		{"host key h dhchap_key --remove -f KEY", "none of the others can be"},
		{"namespace create a b", `NSID is a number from 1, not "b"`},
		{"namespace create a 0", `NSID is a number from 1, not "0"`},
		{"namespace create a 1 --set path", `--set is KEY=VALUE, not "path"`},
		{"namespace create a 1 --set path=[", "--set path: yaml: "},
		{"namespace create a 1 -f absent", "open absent: "},
		{"subsystem delete a --address b", "missing [ca certificate key]"},
		{
			"subsystem delete a --address b --certificate x --key x --ca x",
			"none of the others can be",
		},
	} {
		asked = ""
		line := strings.NewReplacer("FILE", file, "KEY", key).Replace(test.line)
		out, err := run(t, append(strings.Fields(line), "--socket", socket)...)
		if err != nil {
			asked = err.Error()
		} else if !strings.HasSuffix(out, "1 change applied\n") && out != "nothing to do\n" {
			t.Errorf("%s: %q", line, out)
		}
		testutil.True(t, strings.Contains(asked, test.want), "%s: %q, want %q", line, asked,
			test.want)
	}
}

// TestKeys: texts stay as written.
func TestKeys(t *testing.T) {
	null := filepath.Join(t.TempDir(), "null.yaml")
	testutil.Must(t, os.WriteFile(null, []byte("null\n"), 0o600))
	got, err := keys(null, []string{
		"serial=2026-01-01", "model=2026-01-01 10:00:00", "of={uuid: [2026-01-01]}", "size=",
	})
	const want = `{"model":"2026-01-01 10:00:00","of":{"uuid":["2026-01-01"]},` +
		`"serial":"2026-01-01","size":null}`
	testutil.True(t, string(got) == want && err == nil, "%s, %v", got, err)
}

// recorded are queues of a host that connected by RDMA and then, from the same port, by TCP.
func recorded() []observed.TraceQueue {
	at := time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)
	queue := func(qid uint16, transport, local, remote string, list ...observed.TraceCommand,
	) observed.TraceQueue {
		for i := range list {
			list[i].State, list[i].Start = "done", at.Add(time.Duration(i)*time.Millisecond)
			list[i].BackendSeconds, list[i].Number = 0.001, uint64(i+1)
		}
		return observed.TraceQueue{
			Time: at, ID: uint64(qid), Host: "nqn.2014-08.org.nvmexpress:uuid:1", CNTLID: 3,
			Subsystem: "nqn.2026-11.io.example:a", QID: qid, Transport: transport,
			Local: netip.MustParseAddrPort(local), Remote: netip.MustParseAddrPort(remote),
			Commands: list,
		}
	}
	read := observed.TraceCommand{
		Command: "Read", Opcode: 2, CID: 7, NSID: 1, LBA: 1<<32 + 8, Blocks: 8, Length: 4096,
	}
	write := observed.TraceCommand{
		Command: "Write", Opcode: 1, CID: 7, NSID: 1, LBA: 4096, Blocks: 256, FUA: true,
		Status: "LBA Out of Range", StatusCode: uint16(nvme.LBAOutOfRange | nvme.DNR),
	}
	late := observed.TraceCommand{Command: "Read", Opcode: 2, CID: 8, NSID: 2, Blocks: 1}
	io := queue(1, "rdma", "[fd00::1]:9500", "[fd00::2]:50000", read, write, late)
	io.Commands[2].State = "executing"
	return []observed.TraceQueue{
		queue(0, "rdma", "[fd00::1]:9500", "[fd00::2]:50000",
			observed.TraceCommand{Command: "Connect", Opcode: 0x7F, FabricsType: 1, CID: 1},
			observed.TraceCommand{Command: "Identify", Opcode: 6, CID: 2, CDW10: 1, Length: 4096}),
		io,
		queue(2, "tcp", "10.0.0.1:4420", "10.0.0.2:50000", read),
	}
}

// TestWireshark: Wireshark reads the opcode, block and status, and tells the queues apart although
// the RDMA queues share a port.
func TestWireshark(t *testing.T) {
	file := filepath.Join(t.TempDir(), "trace.pcapng")
	f := testutil.Value(os.Create(file))(t)
	defer f.Close()
	c := testutil.Value(newCapture(f))(t)
	for _, q := range recorded() {
		testutil.Must(t, c.add(q))
	}
	tshark := testutil.Program(t, "scripts/deps.sh test installs it", "tshark")
	args := []string{"-n", "-r", file, "-T", "fields", "-E", "separator=|"}
	for _, field := range []string{
		"_ws.col.Protocol", "tcp.stream", "ipv6.src", "ip.src", "tcp.dstport",
		"nvme.fabrics.cmd.connect.qid", "nvme.fabrics.cmd.connect.data.subnqn", "nvme.cmd.opc",
		"nvme.cmd.identify.dword10.cns", "nvme.cmd.cid", "nvme.cmd.nsid", "nvme.cmd.slba",
		"nvme.cmd.nlb",
		"nvme.cqe.cid", "nvme.cqe.status.sct", "nvme.cqe.status.sc",
	} {
		args = append(args, "-e", field)
	}
	decode := exec.CommandContext(t.Context(), tshark, args...)
	var problem strings.Builder
	decode.Stderr = &problem
	out, err := decode.Output()
	testutil.MustTrue(t, err == nil, "%v %v", err, problem.String())
	got := "\n" + string(out)
	testutil.True(t, got == want, "tshark says\n%s, want\n%s", got, want)
}

// want has a line for each packet.
const want = `
NVMe/TCP|0|fd00::2||4420|0|nqn.2026-11.io.example:a|||||||||
NVMe/TCP|0|fd00::1||50000|||||||||0x0000|0x0000|0x0000
NVMe|0|fd00::2||4420|||0x06|0x00000001|0x0002|0x00000000|||||
NVMe|0|fd00::1||50000|||||||||0x0002|0x0000|0x0000
NVMe/TCP|1|fd00::2||4420|1|nqn.2026-11.io.example:a|||||||||
NVMe/TCP|1|fd00::1||50001|||||||||0x0000|0x0000|0x0000
NVMe|1|fd00::2||4420|||0x02||0x0007|0x00000001|0x0000000100000008|8|||
NVMe|1|fd00::1||50001|||||||||0x0007|0x0000|0x0000
NVMe|1|fd00::2||4420|||0x01||0x0007|0x00000001|0x0000000000001000|256|||
NVMe|1|fd00::1||50001|||||||||0x0007|0x0000|0x0080
NVMe|1|fd00::2||4420|||0x02||0x0008|0x00000002|0x0000000000000000|1|||
NVMe/TCP|2||10.0.0.2|4420|2|nqn.2026-11.io.example:a|||||||||
NVMe/TCP|2||10.0.0.1|50000|||||||||0x0000|0x0000|0x0000
NVMe|2||10.0.0.2|4420|||0x02||0x0007|0x00000001|0x0000000100000008|8|||
NVMe|2||10.0.0.1|50000|||||||||0x0007|0x0000|0x0000
`

var testDisks = []observed.Disk{
	{
		Name: "sda", Path: "/dev/disk/by-id/ata-Samsung", Bus: "sata", Model: " Samsung\x1b  SSD",
		SizeBytes:      750156374016,
		BlockSizeBytes: 512, Rotational: true, Partitions: []string{"sda1"},
		Uses: []string{"mounted at / (sda1)", "namespace 1 of x"}, NotExportable: "in use",
		Health: observed.DiskHealth{
			State: "warning", Notes: []string{"3 bad sectors"}, Celsius: 34, PowerOnHours: 20000,
			UsedPercent: 3,
		},
	},
	{
		Name: "nvme0n1", Bus: "nvme", SizeBytes: 1 << 42, BlockSizeBytes: 4096, ReadOnly: true,
		Partitions: []string{"nvme0n1p1"}, Uses: []string{},
		Health: observed.DiskHealth{
			State: "unknown", Notes: []string{"only root may ask"}, PowerOnHours: -1,
			UsedPercent: -1,
		},
	},
}

// runDisks runs the command. It reports whether local was called.
func runDisks(t *testing.T, args ...string) (out string, local bool, err error) {
	t.Helper()
	cmd := Disks(func(*cobra.Command) ([]observed.Disk, error) {
		local = true
		return nil, nil
	})
	cmd.Flags().String("config", "", "")
	var b bytes.Buffer
	cmd.SetOut(&b)
	cmd.SetArgs(args)
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	err = cmd.ExecuteContext(t.Context())
	return b.String(), local, err
}

// TestDisks: the running target answers. Without one the command calls local, unless a target was
// named.
func TestDisks(t *testing.T) {
	src, none := source(), filepath.Join(t.TempDir(), "none")
	src.Disks = func(context.Context) ([]observed.Disk, error) { return testDisks, nil }
	socket := serve(t, src)
	out, local, err := runDisks(t, "--socket", socket)
	want := []string{
		"DISK          BUS             MODEL         SERIAL  SIZE       BLOCK  HEALTH",
		"/dev/sda      sata, rotating  Samsung? SSD  -       698.6 GiB  512    " +
			"warning: 3 bad sectors, 34 °C, 20000 h, 3% worn  mounted at / (sda1), " +
			"namespace 1 of x  no: in use                                " +
			"/dev/disk/by-id/ata-Samsung\n",
		"/dev/nvme0n1  nvme            -             -       4 TiB      4096   only root may ask",
		"yes, read-only, but it has partitions: 1  -\n",
	}
	for _, w := range want {
		testutil.True(t, strings.Contains(out, w), "%q is missing in\n%s", w, out)
	}
	testutil.True(t, err == nil && !local, "%v, local %v", err, local)
	out, _, err = runDisks(t, "--socket", socket, "-o", "json")
	var list []observed.Disk
	if err := errors.Join(err, json.Unmarshal([]byte(out), &list)); err != nil ||
		!reflect.DeepEqual(list, testDisks) {
		t.Errorf("%v, %+v", err, list)
	}

	if _, _, err := runDisks(t, "--socket", none); err == nil {
		t.Error("a target that was named is not there")
	}
	out, local, err = runDisks(t, "--config", "x")
	testutil.True(t, err == nil && local && strings.Contains(out, "no other block device"),
		"%s, %v, local %v", out, err, local)
	src.Disks = func(context.Context) ([]observed.Disk, error) {
		return nil, control.NewProblem(503, "a disk takes long", "")
	}
	_, local, err = runDisks(t, "--socket", serve(t, src))
	testutil.True(t, err != nil && !local, "%v, local %v", err, local)
}

func TestReported(t *testing.T) {
	for in, want := range map[string]string{"": "-", " a  b ": "a b", "\x1b[2J": "?[2J", "é": "?"} {
		testutil.Equal(t, reported(in), want, "%q", in)
	}
}

// TestReloadAsks: on a terminal commands ask before hosts lose something, and only then.
func TestReloadAsks(t *testing.T) {
	lost := control.Affected{Host: testHost, Effect: control.Disconnects, Controllers: 1}
	waits := control.Affected{Host: testHost, Effect: control.Waits, Controllers: 1}
	for _, row := range []struct {
		name     string
		affected control.Affected
		args     string
		terminal bool
		answer   string
		asks     bool
		reloads  bool
	}{
		{"yes", lost, "", true, "y\n", true, true},
		{"yes, in full", lost, "", true, "Yes\n", true, true},
		{"no", lost, "", true, "n\n", true, false},
		{"nothing", lost, "", true, "\n", true, false},
		{"end of input", lost, "", true, "\x04", true, false},
		{"--yes", lost, "--yes", true, "", false, true},
		{"no terminal", lost, "", false, "", false, true},
		{"nobody loses anything", waits, "", true, "", false, true},
	} {
		for _, command := range []string{"reload", "subsystem delete s", "listener create l"} {
			t.Run(row.name+", "+command, func(t *testing.T) {
				src, reloaded := source(), false
				plan := control.Plan{Changes: []control.Change{
					{Text: "a change", Affected: []control.Affected{row.affected}},
				}}
				src.Plan = func(context.Context) (control.Plan, error) { return plan, nil }
				src.Reload = func(context.Context) (control.Plan, error) {
					reloaded = true
					return plan, nil
				}
				src.Put = func(_ context.Context, _ control.Object, _ []byte, dry bool) (
					control.Plan, error,
				) {
					reloaded = reloaded || !dry
					return plan, nil
				}
				src.Delete = func(_ context.Context, _ control.Object, _, dry bool) (control.Plan,
					error,
				) {
					reloaded = reloaded || !dry
					return plan, nil
				}
				var out strings.Builder
				root := &cobra.Command{Use: "nvmf-target", SilenceErrors: true, SilenceUsage: true}
				root.AddCommand(Commands()...)
				root.SetOut(&out)
				root.SetErr(&out)
				if row.terminal {
					ours, tty := pty(t)
					testutil.Value(ours.WriteString(row.answer))(t)
					root.SetIn(tty)
				} else {
					root.SetIn(strings.NewReader(""))
				}
				root.SetArgs(append(append(strings.Fields(command), "--socket", serve(t, src)),
					strings.Fields(row.args)...))
				err := root.ExecuteContext(t.Context())
				testutil.True(t, reloaded == row.reloads && (err == nil) == row.reloads,
					"reloaded %v, %v, want %v", reloaded, err, row.reloads)
				const question = "1 connected host would lose access as shown above. Apply? [y/N] "
				testutil.True(t, strings.Contains(out.String(), question) == row.asks,
					"asks %v, printed %q", !row.asks, out.String())
			})
		}
	}
}
