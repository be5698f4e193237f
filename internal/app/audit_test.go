package app

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/internal/control"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme/auth"
	"github.com/nvmf-target/nvmf-target/nvme/host"
)

// TestAudit: each audited event is one record, in the file and in the log, with the client, its
// address, the event, and the outcome. No record has a key.
func TestAudit(t *testing.T) {
	key, err := auth.NewKey(32, auth.SHA256)
	wrong, err2 := auth.NewKey(32, auth.SHA256)
	testutil.Must(t, errors.Join(err, err2))
	testutil.Secret(t, key.Reveal())
	testutil.Secret(t, wrong.Reveal())
	const nqn = "nqn.2026-11.io.nvmf-target:host"
	dir := t.TempDir()
	path, socket := filepath.Join(dir, "audit"), filepath.Join(dir, "sock")
	file := writeConfig(t, "")
	write := func(hosts string) {
		text := strings.Replace(validFile, "allow_any_host: true", "hosts: ["+nqn+"]", 1) + hosts +
			"\nlog: {level: warn}\nmanaged: " + filepath.Join(dir, "managed") +
			"\naudit: {path: " + path + "}\ncontrol: {socket: " + socket + "}\n"
		testutil.Must(t, os.WriteFile(file, []byte(text), 0o600))
	}
	with := "hosts: [{nqn: " + nqn + `, dhchap_key: "` + key.Reveal() + `"}]`
	write(with)
	c := testutil.Value(loader(file)())(t)
	log := new(testutil.Log)
	level := new(slog.LevelVar)
	level.Set(slog.LevelWarn)
	s := started(t, Options{
		Config: c, Level: level, Load: loader(file),
		Log: slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: level})),
	})
	defer unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0)
	ctx := testutil.Context(t)
	client := control.NewClient(socket)
	defer client.Close()
	transport := host.TCP{Addr: s.Addrs()[0].AddrPort}
	connect := func(subsystem string, k *auth.Key) error {
		o := hostOptions(subsystem)
		o.HostNQN, o.Key = nqn, k
		h, err := host.Connect(ctx, transport, o)
		if err == nil {
			h.Close()
		}
		return err
	}
	testutil.Must(t, connect(testNQN, key))
	testutil.MustTrue(t, connect(testNQN, wrong) != nil && connect(testNQN+"-absent", key) != nil,
		"a host was not refused")
	_, err = control.PostDisconnect.To(ctx, client, control.Disconnect{Host: "absent"})
	_, err2 = client.Put(ctx, control.Object{Subsystem: testNQN + "-new"}, nil)
	testutil.Check(t, errors.Join(err, err2))
	_, err = control.PostDrain.To(ctx, client, control.ListenerID{Listener: "absent"})
	testutil.True(t, err != nil, "a listener that does not exist")
	write("")
	testutil.Check(t, testutil.Err(client.Reload(ctx)))
	write(with)
	testutil.Check(t, testutil.Err(s.Reload("signal", "hangup")))
	write("hosts: {}")
	testutil.True(t, testutil.Err(s.Reload("signal", "hangup")) != nil, "a broken file")
	testutil.Check(t, s.Stop(ctx))

	all := testutil.JSONLines(t, path)
	text := fmt.Sprint(all)
	for _, k := range []*auth.Key{key, wrong} {
		testutil.True(t, !shows(t, text, k.Reveal()), "a record has a key: %s", text)
	}
	me := fmt.Sprintf(" uid:%d", os.Getuid())
	pid := fmt.Sprintf(" pid:%d ", os.Getpid())
	for _, want := range [][]string{
		{"audit:authentication", "outcome:success", "host:" + nqn, " remote:127.0.0.1:", testNQN},
		{"audit:authentication", "outcome:failure", "host:" + nqn, " remote:127.0.0.1:", testNQN},
		{"audit:refusal", "outcome:failure", "host:" + nqn, testNQN + "-absent"},
		{"audit:administration", "outcome:success", "request:POST /v1/hosts/disconnect", me, pid},
		{"audit:administration", "outcome:success", "request:PUT /v1/subsystems/", me, pid},
		{"audit:administration", "configuration: + subsystem " + testNQN + "-new", me, pid},
		{"audit:administration", "outcome:failure", "request:POST /v1/listeners/drain", me, pid},
		{"audit:key", "outcome:success", "key changed: - host " + nqn, me, pid},
		{"audit:key", "key changed: + host " + nqn + ": dhchap_key: hidden-", "signal:hangup"},
		{"audit:administration", "request:POST /v1/reload", me, pid},
		{"audit:administration", "the configuration was applied", "signal:hangup", "changes:1"},
		{
			"audit:administration", "outcome:failure", "the configuration was not changed",
			"signal:hangup",
		},
	} {
		n := 0
		for _, r := range all {
			one := fmt.Sprint(r)
			fits := true
			for _, part := range want {
				fits = fits && strings.Contains(one, part)
			}
			if fits {
				n++
			}
		}
		testutil.True(t, n == 1, "%d records have %q:\n%s", n, want, text)
	}
	testutil.True(t, strings.Contains(log.String(), "audit=authentication outcome=failure") &&
		!strings.Contains(log.String(), "outcome=success"), "the log at the level of warnings:\n%s",
		log)
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", info.Mode(), err)
	}
}
