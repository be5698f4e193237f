package app_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/backend"
	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/internal/app"
	"github.com/nvmf-target/nvmf-target/internal/state"
	"github.com/nvmf-target/nvmf-target/internal/testing/hosttest"
	"github.com/nvmf-target/nvmf-target/internal/testing/netiftest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/internal/volumes"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/host"
	"github.com/nvmf-target/nvmf-target/nvme/target/reservation"
)

// promised makes a state directory with persistent reservations of namespaces of testNQN.
func promised(t *testing.T, dir string, nsids ...uint32) {
	t.Helper()
	s, err := state.Open(dir)
	for _, nsid := range nsids {
		if err == nil {
			err = s.Reservations.Save(testNQN, nsid, &reservation.State{PTPL: true})
		}
	}
	if err == nil {
		err = s.Close()
	}
	testutil.Must(t, err)
}

// onlyFile returns the only file in a directory of the state.
func onlyFile(t *testing.T, dir, kind string) string {
	t.Helper()
	list, err := filepath.Glob(filepath.Join(dir, kind, "*.json"))
	testutil.MustTrue(t, err == nil && len(list) == 1, "%v %v", list, err)
	return list[0]
}

// TestStateOfOthers: a program that may not read the promises of its predecessor ends with an error
// and a hint. A program without a predecessor starts.
func TestStateOfOthers(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to be somebody else")
	}
	dir := t.TempDir()
	testutil.Must(t, os.Chmod(filepath.Dir(dir), 0o755))
	promised(t, filepath.Join(dir, "closed"), 1)
	testutil.Must(t, os.Chmod(filepath.Join(dir, "closed"), 0o700))
	file := filepath.Join(dir, "nvmf-target.yaml")
	testutil.Must(t, os.WriteFile(file, []byte(validFile), 0o644))
	promised(t, filepath.Join(dir, "file"))
	secret := filepath.Join(dir, "file", "state")
	testutil.Must(t, os.WriteFile(secret, nil, 0))
	testutil.Must(t, os.Chmod(secret, 0o600))
	for name, want := range map[string]string{
		"closed": "Let the user of the target (ID 65534) read and write it", "new": "",
		"file": "Let the user of the target (ID 65534) read it, or move it away",
	} {
		child := exec.Command("/proc/self/exe")
		child.Dir = "/"
		child.Env = append(os.Environ(), serveFile+"="+file, "RUNTIME_DIRECTORY="+dir+"/run",
			"STATE_DIRECTORY="+filepath.Join(dir, name))
		child.SysProcAttr = &syscall.SysProcAttr{
			Credential: &syscall.Credential{Uid: 65534, Gid: 65534},
		}
		for _, own := range []string{"run", "new"} {
			_ = os.Mkdir(filepath.Join(dir, own), 0o755)
			testutil.Must(t, os.Chown(filepath.Join(dir, own), 65534, 65534))
		}
		if want == "" {
			serves(t, child, " on tcp ")
			continue
		}
		out, err := child.CombinedOutput()
		testutil.True(t, err != nil && strings.Contains(string(out), want) &&
			strings.Contains(string(out), filepath.Join(dir, name)), "%s: %v, %s", name, err, out)
	}
}

// serves starts a target, waits for a line of output, and ends it.
func serves(t *testing.T, child *exec.Cmd, says string) {
	t.Helper()
	log := new(testutil.Log)
	child.Stdout, child.Stderr = log, log
	testutil.Must(t, child.Start())
	kill := time.AfterFunc(testTimeout, func() { _ = child.Process.Kill() })
	defer kill.Stop()
	testutil.Until(t, says, func() bool {
		b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", child.Process.Pid))
		return strings.Contains(log.String(), says) || strings.Contains(string(b), "State:\tZ")
	})
	testutil.Check(t, child.Process.Signal(syscall.SIGTERM))
	err := child.Wait()
	testutil.True(t, err == nil, "%v\n%s", err, log)
}

// TestDeletedPromise: a file that is deleted while the target runs is there for the next start,
// also if namespaces exchange their storage.
func TestDeletedPromise(t *testing.T) {
	dir := t.TempDir()
	promised(t, dir, 1)
	l := newLive(t, listenAny, sub(anyHosts, onFile(1, "a"), onFile(2, "b")),
		app.Options{StateDir: dir})
	file := onlyFile(t, dir, "reservations")
	testutil.Must(t, os.Remove(file))
	l.RestoreState()
	l.apply(listenAny, sub(anyHosts, onFile(1, "b"), onFile(2, "a")))
	testutil.Equal(t, onlyFile(t, dir, "reservations"), file, "")
	testutil.True(t, strings.Contains(l.Log.String(), "deleted, and was written again"),
		"the log:\n%s", l.Log)
}

// TestLeftGroup: a namespace with promises in a group of gateways is not served without them, and
// says where they are. Moving the file away ends them. A reload cannot take it out of its group, or
// put one into a group that is not shared yet.
func TestLeftGroup(t *testing.T) {
	dir := t.TempDir()
	name := state.Name{NQN: testNQN, NSID: 1}
	s := testutil.Value(state.Open(dir))(t)
	testutil.Must(t, s.Note(name, "nvme"))
	testutil.Must(t, s.Close())
	two := sub(anyHosts, onFile(1, "a"), onFile(2, "b"))
	l := newLive(t, listenAny, two, app.Options{StateDir: dir, Retry: time.Millisecond})
	list := l.Target.Stats()
	testutil.True(t, len(list) == 1 && list[0].NSID == 2, "served: %+v", list)
	file := onlyFile(t, dir, "shared")
	one := volumes.All(l.Current())[0].Name()
	for _, part := range []string{
		name.Object() + " of pool nvme", file, "Put back the section group with pool nvme",
	} {
		reason := l.Engine().Volumes.Reason(one)
		testutil.True(t, strings.Contains(reason, part), "no %s in: %s", part, reason)
	}
	l.RestoreState()
	testutil.Must(t, os.Remove(file))
	l.RestoreState()
	testutil.Until(t, "it is served", func() bool { return len(l.Target.Stats()) == 2 })
	testutil.Must(t, l.State().Note(name, "nvme"))
	err := l.refuse(listenAny, sub(anyHosts, onFile(1, "c"), onFile(2, "b")))
	testutil.Fails(t, err, "It is not in a group with that pool", "a reload")
	three := "{nsid: 3, backend: rbd, image: a/b, ana_group: 7}"
	err = l.refuse(listenAny, sub(anyHosts, onFile(1, "a"), onFile(2, "b"), three)+
		"group: {name: a, pool: nvme, ana_groups: [7]}\n")
	testutil.Fails(t, err, "only after a restart", "a reload")
	testutil.Equal(t, len(l.Target.Stats()), 2, "namespaces")
}

// TestJoinGroup: a namespace that a host has write protected until a restart does not join a group
// of gateways, which would not keep that.
func TestJoinGroup(t *testing.T) {
	const group = "group: {name: a, pool: nvme, conf: /nowhere/ceph.conf, ana_groups: [7]}\n"
	l := newLive(t, listenAny, sub(anyHosts, onFile(1, "a"))+group, app.Options{
		StateDir:   t.TempDir(),
		OpenDevice: func(*config.Namespace) (backend.Device, error) { return newCounted(t), nil },
	})
	c := testutil.Value(l.connect(testNQN, hostA, 0))(t)
	var op host.Op
	op.SQE.SetOpcode(nvme.AdminSetFeatures)
	op.SQE.SetNSID(1)
	op.SQE.Features().Set(nvme.FeatureWriteProtect, uint32(nvme.WriteProtectUntilPowerCycle))
	cqe, err := c.Admin(t.Context(), &op)
	testutil.MustTrue(t, err == nil && cqe.Status().OK(), "%v, %v", cqe.Status(), err)
	joins := sub(anyHosts, "{nsid: 1, backend: rbd, image: a/b, ana_group: 7}") + group
	testutil.Fails(t, l.refuse(listenAny, joins), "restart the target before it joins", "a reload")
	l.apply(listenAny, sub(anyHosts, onFile(1, "a"), onFile(2, "b"))+group)
}

// TestPromiseNotKept: a promise fails while the state cannot be written, and does not hold. Once it
// can be written again all is well.
func TestPromiseNotKept(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "state")
	l := newLive(t, listenAny, sub(anyHosts, onFile(1, "disk")), app.Options{StateDir: dir})
	c := testutil.Value(l.connect(testNQN, hostA, 0))(t)
	q := testutil.Value(c.OpenQueue(t.Context(), 1, 16))(t)
	defer q.Close()
	do := func(what string, cqe nvme.CQE, err error, ok bool) {
		t.Helper()
		testutil.True(t, err == nil && cqe.Status().OK() == ok, "%s: %v, %v", what, cqe.Status(),
			err)
	}
	protect := func(to nvme.WriteProtection, ok bool) {
		t.Helper()
		var op host.Op
		op.SQE.SetOpcode(nvme.AdminSetFeatures)
		op.SQE.SetNSID(1)
		op.SQE.Features().Set(nvme.FeatureWriteProtect, uint32(to))
		cqe, err := c.Admin(t.Context(), &op)
		do("write protect", cqe, err, ok)
	}
	command := func(ok bool, op *host.Op) {
		t.Helper()
		op.SQE.SetNSID(1)
		cqe, err := q.Do(t.Context(), op)
		do(fmt.Sprintf("opcode %#x", op.SQE.Opcode()), cqe, err, ok)
	}
	mark := func(ok bool) {
		t.Helper()
		var op host.Op
		op.SQE.SetOpcode(nvme.NVMWriteUncorrectable)
		op.SQE.RW().Set(1, 1, 0)
		command(ok, &op)
	}
	register := func(ok bool) {
		t.Helper()
		var keys nvme.ReservationKeys
		keys.Set(0, 7)
		op := host.Op{Data: keys[:]}
		op.SQE.SetOpcode(nvme.IOReservationRegister)
		op.SQE.Reservation().Set(nvme.ReservationRegister, true, 0, nvme.SetPTPL)
		command(ok, &op)
	}
	buf := testutil.Value(c.Map(4096))(t)
	move := func(from, to string) {
		t.Helper()
		testutil.Must(t, os.Rename(from, to))
	}
	move(dir, dir+".moved")
	protect(nvme.WriteProtect, false)
	register(false)
	mark(false)
	testutil.Equal(t, hosttest.Write(t.Context(), q, 1, 0, 1, buf[:512], 0), nil,
		"the namespace was write protected nevertheless")
	r := l.State().Reservations.Load(testNQN, 1)
	testutil.True(t, r == nil && l.State().Failed(), "%+v", r)
	if _, err := l.Apply(l.parse(listenAny+", {transport: tcp, address: 127.0.0.2, port: 0}",
		sub(anyHosts, onFile(1, "disk")))); err == nil ||
		!strings.Contains(err.Error(), "port IDs cannot be stored") || len(l.Addrs()) != 1 {
		t.Errorf("a port with an ID that is not stored: %v", err)
	}
	move(dir+".moved", dir)
	register(true)
	mark(true)
	testutil.True(t, hosttest.Read(t.Context(), q, 1, 1, 1, buf[:512]) != nil,
		"a block that is marked is read")
	protect(nvme.WriteProtect, true)
	c.Close()
	l.Stop()
	s := testutil.Value(state.Open(dir))(t)
	testutil.True(t, s.Protection.Protected(testNQN, 1) && s.Reservations.Load(testNQN, 1) != nil &&
		s.Uncorrectable.Load(testNQN, 1) != nil, "what was acknowledged was lost")
	testutil.Check(t, s.Close())
}

// TestPortWaitsForID: an address that appears while the state cannot be written waits for its port
// ID, and has the reason. Others go on.
func TestPortWaitsForID(t *testing.T) {
	n := &netiftest.Network{}
	n.Set("eth0 127.0.9.1")
	dir := filepath.Join(t.TempDir(), "state")
	l := newLive(t, "{transport: tcp, address: eth0, port: 0}", sub(anyHosts, inRAM), app.Options{
		Network: n, StateDir: dir, Retry: time.Millisecond, Settle: time.Millisecond,
	})
	testutil.Must(t, os.Rename(dir, dir+".moved"))
	n.Set("eth0 127.0.9.1", "eth0 127.0.9.2")
	testutil.Until(t, "it says why it waits", func() bool {
		return strings.Contains(fmt.Sprint(l.Listeners().States()), "port IDs cannot be stored")
	})
	testutil.True(t, len(l.Addrs()) == 1, "%v", l.Addrs())
	testutil.Must(t, os.Rename(dir+".moved", dir))
	testutil.Until(t, "two ports", func() bool { return len(l.Addrs()) == 2 })
}
