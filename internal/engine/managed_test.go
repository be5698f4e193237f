package engine

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme/auth"
)

func TestMain(m *testing.M) { testutil.Main(m) }

// TestLinksOfDevices: a link below /dev may lead to devices elsewhere there, and to nothing else.
func TestLinksOfDevices(t *testing.T) {
	dir := testutil.Value(os.MkdirTemp("/dev/shm", "nvmf-target-"))(t)
	defer os.RemoveAll(dir)
	for end, want := range map[string]bool{
		"/dev/null": true, "/dev/null/x": false, "/dev/shm": false, "/etc/passwd": false,
		"/x": false, dir: true,
	} {
		link := filepath.Join(dir, "link")
		testutil.Must(t, os.Symlink(end, link))
		testutil.Equal(t, leadsTo(link, []string{dir}), want, "a link to %s", end)
		testutil.Must(t, os.Remove(link))
	}
}

// TestTLSKeyCounts: a key counts while its host has it.
func TestTLSKeyCounts(t *testing.T) {
	var e Engine
	k, other := testutil.Value(auth.NewTLSKey(auth.SHA256))(t), new(auth.TLSKey)
	e.tlsKeys.Store("host", &config.Authentication{TLSKey: k})
	testutil.True(t, e.TLSKeyCounts("host", k), "the key does not count")
	testutil.True(t, !e.TLSKeyCounts("host", other) && !e.TLSKeyCounts("x", k), "others count")
}

// TestReloadOfReplaced: a reload names the reason if its programs for keys are ended because
// another process replaces this one.
func TestReloadOfReplaced(t *testing.T) {
	var e Engine
	e.Log, e.Reloading = slog.New(slog.DiscardHandler), func(*config.Config) error { return nil }
	e.Load = func(...config.Option) (*config.Config, error) {
		e.Replaced()
		return nil, errors.New("a program was ended")
	}
	testutil.Is(t, testutil.Err(e.Reload()), ErrReplaced, "")
}

// TestGuardSecrets: with any secret in the configuration the process leaves no core file.
func TestGuardSecrets(t *testing.T) {
	key := testutil.Value(auth.NewKey(32, auth.NoHash))(t)
	tlsKey := testutil.Value(auth.NewTLSKey(auth.NoHash))(t)
	defer unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0)
	for what, tc := range map[string]struct {
		set  func(c *config.Config)
		want int
	}{
		"nothing":       {func(*config.Config) {}, 1},
		"metrics.token": {func(c *config.Config) { c.Metrics.Token[0] = 1 }, 0},
		"metrics.key":   {func(c *config.Config) { c.Metrics.Key = "/key" }, 0},
		"web.token":     {func(c *config.Config) { c.Web.Token[0] = 1 }, 0},
		"a target's token": {func(c *config.Config) {
			c.WebTargets = []config.WebTarget{{Token: func() string { return "" }}}
		}, 0},
		"web.key":        {func(c *config.Config) { c.Web.Key = "/key" }, 0},
		"control.key":    {func(c *config.Config) { c.Control.Key = "/key" }, 0},
		"the dhchap_key": {func(c *config.Config) { c.Hosts[0].Key = key }, 0},
		"the tls_key":    {func(c *config.Config) { c.Hosts[0].TLSKey = tlsKey }, 0},
	} {
		testutil.Must(t, unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0))
		c := &config.Config{Hosts: []config.Host{{}}}
		tc.set(c)
		GuardSecrets(c)
		n, err := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0)
		testutil.True(t, n == tc.want && err == nil, "%s: dumpable is %d, %v", what, n, err)
	}
}
