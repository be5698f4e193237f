// Package cephtest runs a small Ceph cluster on the loopback interface: one monitor and one OSD
// that stores objects in memory, with cephx. Tests that need it are skipped on machines without the
// daemons.
package cephtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// Cluster is a running cluster.
type Cluster struct {
	dir      string
	ports    [2]uint16 // of the monitor, for versions 2 and 1 of its protocol
	daemons  map[string]*daemon
	commands map[string][]string
	images   atomic.Int32
	id       string // its fsid

	mu    sync.Mutex // for shell
	shell *shell
}

// daemon is a running daemon.
type daemon struct {
	*exec.Cmd
	ended <-chan struct{} // closed at its end
}

// Pool is the pool of images.
const Pool = "rbd"

// New boots a cluster and stops it at the end of the test. Its users are client.admin and
// client.gateway, which may use the pool.
func New(tb testing.TB) *Cluster {
	tb.Helper()
	for _, name := range []string{"ceph-mon", "ceph-osd", "ceph", "rbd"} {
		testutil.Program(tb, "apt-get install ceph-mon ceph-osd ceph-common", name)
	}
	dir, err := os.MkdirTemp("", "ceph-")
	testutil.Must(tb, err)
	c := &Cluster{
		dir: dir, daemons: map[string]*daemon{},
		ports: [2]uint16{testutil.FreePort(tb), testutil.FreePort(tb)},
		commands: map[string][]string{
			"mon": {"ceph-mon", "-f", "-i", "a"}, "osd": {"ceph-osd", "-f", "-i", "0"},
		},
	}
	tb.Cleanup(func() {
		c.endShell()
		for name := range c.daemons {
			c.Stop(tb, name)
		}
		_ = os.RemoveAll(dir)
	})
	c.boot(tb)
	return c
}

// Conf returns the path of ceph.conf.
func (c *Cluster) Conf() string { return filepath.Join(c.dir, "ceph.conf") }

// Path returns the path of a file of the cluster.
func (c *Cluster) Path(name string) string { return filepath.Join(c.dir, name) }

// conf is the configuration of a cluster. The read lease of a placement group does not end: an
// operation that comes after its end waits for another OSD, for ever if there is only one. An OSD
// renews it every few seconds, unless it is stopped or the machine is busy.
const conf = `[global]
fsid = %[2]s
mon_host = [v2:127.0.0.1:%[3]d,v1:127.0.0.1:%[4]d]
mon_initial_members = a
public_addr = 127.0.0.1
cluster_addr = 127.0.0.1
auth_cluster_required = cephx
auth_service_required = cephx
auth_client_required = cephx
auth_allow_insecure_global_id_reclaim = false
osd_pool_default_size = 1
osd_pool_default_min_size = 1
osd_pool_default_pg_num = 8
osd_pool_default_pg_autoscale_mode = off
osd_crush_chooseleaf_type = 0
mon_allow_pool_size_one = true
mon_allow_pool_delete = true
mon_data_avail_warn = 2
mon_data_avail_crit = 1
mon_tick_interval = 1
paxos_propose_interval = 0.05
paxos_min_wait = 0.01
osd_mon_report_interval = 1
run_dir = %[1]s
keyring = %[1]s/$name.keyring
admin_socket =
pid_file =
log_file = %[1]s/$name.log
ms_bind_ipv6 = false
[client]
log_file =
[mon.a]
mon_data = %[1]s/mon
keyring = %[1]s/mon.keyring
[osd.0]
osd_data = %[1]s/osd
osd_objectstore = memstore
memstore_device_bytes = 1073741824
osd_op_num_shards = 2
osd_heartbeat_grace = 5
osd_heartbeat_interval = 1
osd_pool_default_read_lease_ratio = 100000
`

func (c *Cluster) boot(tb testing.TB) {
	tb.Helper()
	id := strings.TrimSpace(string(testutil.Value(os.ReadFile("/proc/sys/kernel/random/uuid"))(tb)))
	c.id = id
	testutil.Must(tb, os.WriteFile(c.Conf(), fmt.Appendf(nil, conf, c.dir, id, c.ports[0],
		c.ports[1]), 0o600))
	mons, monmap := c.Path("mon.keyring"), c.Path("monmap")
	c.run(tb, "ceph-authtool", "-C", mons, "--gen-key", "-n", "mon.", "--cap", "mon", "allow *")
	for name, caps := range map[string][]string{
		"client.admin":   {"mon", "allow *", "osd", "allow *", "mgr", "allow *"},
		"osd.0":          {"mon", "allow profile osd", "osd", "allow *"},
		"client.gateway": {"mon", "profile rbd", "osd", "profile rbd pool=" + Pool},
	} {
		args := []string{"-C", c.Path(name + ".keyring"), "--gen-key", "-n", name}
		for i := 0; i < len(caps); i += 2 {
			args = append(args, "--cap", caps[i], caps[i+1])
		}
		c.run(tb, "ceph-authtool", args...)
		c.run(tb, "ceph-authtool", mons, "--import-keyring", c.Path(name+".keyring"))
	}
	c.run(tb, "monmaptool", "--create", "--addv", "a", fmt.Sprintf(
		"[v2:127.0.0.1:%d,v1:127.0.0.1:%d]", c.ports[0], c.ports[1]), "--fsid", id, monmap)
	c.run(tb, "ceph-mon", "--mkfs", "-i", "a", "--monmap", monmap, "--keyring", mons)
	c.Start(tb, "mon")
	c.Ceph(tb, "osd", "new", id)
	c.Ceph(tb, "osd", "pool", "create", Pool, "8")
	c.Ceph(tb, "osd", "pool", "application", "enable", Pool, "rbd")
	testutil.Must(tb, os.Mkdir(c.Path("osd"), 0o700))
	c.run(tb, "ceph-osd", "-i", "0", "--mkfs", "--osd-uuid", id)
	c.Start(tb, "osd")
}

// Start starts a daemon, "mon" or "osd".
func (c *Cluster) Start(tb testing.TB, name string) {
	tb.Helper()
	args := append(c.commands[name], "-c", c.Conf())
	cmd := exec.Command(args[0], args[1:]...)
	ended, err := testutil.StartChild(cmd)
	testutil.Must(tb, err)
	c.daemons[name] = &daemon{cmd, ended}
}

// Stop kills a daemon.
func (c *Cluster) Stop(tb testing.TB, name string) {
	tb.Helper()
	_ = c.daemons[name].Process.Kill()
	<-c.daemons[name].ended
	delete(c.daemons, name)
}

// Pause stops a daemon, which then answers nothing, until Continue.
func (c *Cluster) Pause(tb testing.TB, name string) {
	tb.Helper()
	testutil.Pause(tb, c.daemons[name].Process)
}

// Continue ends Pause.
func (c *Cluster) Continue(tb testing.TB, name string) {
	tb.Helper()
	testutil.Must(tb, c.daemons[name].Process.Signal(syscall.SIGCONT))
}

// RBD runs the program rbd and returns its output.
func (c *Cluster) RBD(tb testing.TB, args ...string) string {
	tb.Helper()
	return c.run(tb, "rbd", args...)
}

// Rados runs the program rados and returns its output.
func (c *Cluster) Rados(tb testing.TB, args ...string) string {
	tb.Helper()
	return c.run(tb, "rados", append([]string{"-p", Pool}, args...)...)
}

// Image makes an image and returns its name, pool/image. features are as for rbd create.
func (c *Cluster) Image(tb testing.TB, size, features string) string {
	tb.Helper()
	name := fmt.Sprintf("%s/image%d", Pool, c.images.Add(1))
	c.RBD(tb, "create", "--size", size, "--image-feature", features, name)
	return name
}

// FullAt sets the used share of the OSD's memory above which the cluster is full.
func (c *Cluster) FullAt(tb testing.TB, ratio string) {
	tb.Helper()
	for _, level := range []string{"full", "backfillfull", "nearfull"} {
		c.Ceph(tb, "osd", "set-"+level+"-ratio", ratio)
	}
}

// run runs a program of Ceph.
func (c *Cluster) run(tb testing.TB, name string, args ...string) string {
	tb.Helper()
	out, err := c.try(testutil.Patience, name, args)
	testutil.Must(tb, err)
	return out
}

// try runs a program of Ceph within a time limit. The programs themselves wait for 300 s.
func (c *Cluster) try(limit time.Duration, name string, args []string) (string, error) {
	ctx, cancel := c.context(limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, append(args, "-c", c.Conf())...)
	cmd.WaitDelay = testutil.Patience
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	if err == nil {
		return out.String(), nil
	}
	return "", fmt.Errorf("%s %s: %w\n%s%s%s", name, strings.Join(args, " "),
		errors.Join(err, ctx.Err()), out.String(), errs.String(), c.logs())
}

// context returns a context that ends with the first daemon, after which nothing answers.
func (c *Cluster) context(limit time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	for _, d := range c.daemons {
		go func() {
			select {
			case <-d.ended:
				cancel()
			case <-ctx.Done():
			}
		}()
	}
	return ctx, cancel
}

// logs returns the ends of the logs of the daemons.
func (c *Cluster) logs() (text string) {
	for _, log := range []string{"mon.a.log", "osd.0.log"} {
		b, _ := os.ReadFile(c.Path(log))
		text += fmt.Sprintf("%s: ... %s\n", log, b[max(0, len(b)-1000):])
	}
	return text
}
