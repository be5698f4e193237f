package app

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/nvmf-target/nvmf-target/config"
	"github.com/nvmf-target/nvmf-target/internal/control"
	"github.com/nvmf-target/nvmf-target/internal/httpd"
	"github.com/nvmf-target/nvmf-target/internal/observed"
	"github.com/nvmf-target/nvmf-target/internal/secret"
	"github.com/nvmf-target/nvmf-target/internal/testing/netiftest"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/internal/volumes"
	"github.com/nvmf-target/nvmf-target/nvme/auth"
	"github.com/nvmf-target/nvmf-target/nvme/host"
)

// controlled starts a server with a control socket and returns a client of it.
func controlled(t *testing.T, o Options, listeners string, more ...string) (*Server,
	*control.Client,
) {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "control.sock")
	o.Config = parse(t, listeners, append(more, "control: {socket: "+socket+"}")...)
	s := started(t, o)
	c := control.NewClient(socket)
	t.Cleanup(c.Close)
	return s, c
}

// TestControl: a client sees a host, a refused host, and waiting objects.
func TestControl(t *testing.T) {
	waiting := "{transport: tcp, address: 192.0.2.1, port: 4420}"
	failed := "{transport: rdma, address: 127.0.0.1}"
	_, c := controlled(t, Options{Verbs: noRDMA{}}, anyPort+", "+waiting+", "+failed)
	ctx := t.Context()
	listeners, err := control.GetListeners.From(ctx, c)
	testutil.MustTrue(t, err == nil && len(listeners) == 3 && listeners[0].State == "up" &&
		listeners[0].PortID == 1 && listeners[1].State == "waiting" &&
		listeners[1].Address == "192.0.2.1:4420" && listeners[1].Reason != "" &&
		listeners[2].State == "failed" && listeners[2].Reason != "", "%+v, %v", listeners, err)
	tr := host.TCP{Addr: netip.MustParseAddrPort(listeners[0].Address), HeaderDigest: true}
	h := testutil.Value(host.Connect(ctx, tr, hostOptions(testNQN)))(t)
	defer h.Close()
	_, err = host.Connect(ctx, tr, hostOptions(testNQN+"0"))
	testutil.MustTrue(t, err != nil, "a subsystem that does not exist")

	connections, err := control.GetConnections.From(ctx, c)
	testutil.MustTrue(t, err == nil && len(connections) != 0, "%+v, %v", connections, err)
	admin := connections[len(connections)-1] // a refused connection may still be there
	testutil.True(t, admin.Subsystem == testNQN && admin.Host == hostOptions("").HostNQN &&
		admin.HeaderDigest && !admin.DataDigest && admin.Transport == "tcp" &&
		admin.Local.String() == listeners[0].Address && admin.Depth != 0, "connection %+v", admin)
	st, err := control.GetStatus.From(ctx, c)
	testutil.MustTrue(t, err == nil && len(st.Shares) == 2, "%+v, %v", st.Shares, err)
	for i, of := range []string{st.Shares[0].Network, st.Shares[1].Host} {
		u := &st.Shares[i]
		want := [2]string{"127.0.0.1", admin.Host}[i]
		testutil.True(t, of == want && !u.Proven && u.Transport == "tcp" && u.Connections == 1 &&
			u.MostConnections >= 100 && u.QueueMemory != 0 && u.MostQueueMemory >= u.QueueMemory &&
			u.MostDataMemory != 0, "share of %q, want %q: %+v", of, want, u)
	}
	reactors, err := control.GetReactors.From(ctx, c)
	testutil.True(t, err == nil && len(reactors) == 2 && reactors[0].Polls != 0 &&
		reactors[0].MemoryBytes != 0, "reactors %+v, %v", reactors, err)
	hosts, err := control.GetHosts.From(ctx, c)
	testutil.True(t, err == nil && len(hosts) == 1 && hosts[0].NQN == admin.Host &&
		hosts[0].ID == "01000000000000000000000000000000" && hosts[0].Remote == admin.Remote,
		"hosts %+v, %v", hosts, err)
	subsystems, err := control.GetSubsystems.From(ctx, c)
	testutil.True(t, err == nil && len(subsystems) == 1 && subsystems[0].Controllers == 1 &&
		subsystems[0].Namespaces == 1 && subsystems[0].AllowAnyHost, "subsystems %+v, %v",
		subsystems, err)
	namespaces, err := control.GetNamespaces.From(ctx, c)
	testutil.True(t, err == nil && len(namespaces) == 1 && namespaces[0].State == "ready" &&
		namespaces[0].SizeBytes == 16<<20 && namespaces[0].Backend == "ram", "namespaces %+v, %v",
		namespaces, err)
	id := control.NamespaceID{Subsystem: testNQN, NSID: 1}
	if n, err := control.PostPause.To(ctx, c, id); err != nil || n.State != "paused" {
		t.Errorf("paused: %+v, %v", n, err)
	}
	if n, err := control.PostResume.To(ctx, c, id); err != nil || n.State != "ready" {
		t.Errorf("resumed: %+v, %v", n, err)
	}
	id.NSID = 2
	_, err = control.PostPause.To(ctx, c, id)
	testutil.Fails(t, err, "no namespace 2", "an unknown namespace")
	status, err := control.GetStatus.From(ctx, c)
	testutil.True(t, err == nil && status.Version == "test" && status.Listeners == 1 &&
		status.WaitingListeners == 1 && status.Controllers == 1 && status.Namespaces == 1,
		"status %+v, %v", status, err)
	checkRefusal(t, c)
	d, err := control.PostDisconnect.To(ctx, c, control.Disconnect{Host: admin.Host})
	testutil.True(t, err == nil && d.Controllers == 1, "%+v, %v", d, err)
}

// checkRefusal looks for the refused Connect.
func checkRefusal(t *testing.T, c *control.Client) {
	t.Helper()
	refusals, err := control.GetRefusals.From(t.Context(), c)
	i := slices.IndexFunc(refusals, func(r observed.Refusal) bool {
		return r.Message == "connect refused"
	})
	if i >= 0 && (refusals[i].Received != testNQN+"0" || refusals[i].Hint == "") {
		t.Errorf("%+v", refusals[i])
	}
	testutil.True(t, err == nil && i >= 0 && slices.Contains(refusals[i].Attributes,
		observed.Attribute{Key: "subsystem", Value: testNQN + "0"}), "refusals %+v, %v", refusals,
		err)
	events, err := control.GetEvents.From(t.Context(), c)
	if err != nil || !slices.ContainsFunc(events, func(e observed.Event) bool {
		return e.Message == "controller created"
	}) {
		t.Errorf("events %+v, %v", events, err)
	}
}

// issue writes a certificate that is its own CA, and its key.
func issue(t *testing.T, dir string, left time.Duration) httpd.Certificates {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	c := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(left), IsCA: true,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, BasicConstraintsValid: true,
	}
	der, err2 := x509.CreateCertificate(rand.Reader, c, c, &key.PublicKey, key)
	private, err3 := x509.MarshalPKCS8PrivateKey(key)
	files := httpd.Certificates{
		Certificate: filepath.Join(dir, "crt"), Key: filepath.Join(dir, "key"),
		CA: filepath.Join(dir, "crt"),
	}
	block := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	err4 := os.WriteFile(files.Certificate, block, 0o600)
	block = pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})
	err5 := os.WriteFile(files.Key, block, 0o600)
	testutil.Must(t, errors.Join(err, err2, err3, err4, err5))
	return files
}

// TestControlRenewal: a reload takes over a new certificate, and refuses one that cannot be used.
func TestControlRenewal(t *testing.T) {
	dir, log := t.TempDir(), new(testutil.Log)
	files := issue(t, dir, time.Hour)
	c := parse(t, anyPort, fmt.Sprintf("control: {socket: '', listen: '127.0.0.1:0', "+
		"certificate: %s, key: %s, client_ca: %s}", files.Certificate, files.Key, files.CA))
	s := started(t, Options{
		Config: c, Log: log.Logger(),
		Load: func(...config.Option) (*config.Config, error) { return c, nil },
	})
	testutil.True(t, strings.Contains(log.String(), "the certificate ends on "), "no warning:\n%s",
		log)
	reload := func(files httpd.Certificates) error {
		t.Helper()
		client := testutil.Value(control.NewTLSClient(s.control.Load().Addr().String(), files))(t)
		defer client.Close()
		_, err := client.Reload(t.Context())
		return err
	}
	testutil.Check(t, reload(files))
	old := issue(t, t.TempDir(), time.Hour) // any other
	files = issue(t, dir, 1000*time.Hour)
	testutil.True(t, reload(files) != nil, "the certificate changed without a reload")
	testutil.Check(t, testutil.Err(s.Reload()))
	testutil.Check(t, reload(files))
	testutil.True(t, reload(old) != nil, "another certificate is accepted")
	testutil.Must(t, os.Truncate(files.Key, 0))
	if _, err := s.Reload(); err == nil || !strings.Contains(err.Error(), ": control.key: ") {
		t.Errorf("a key file that is empty: %v", err)
	}
}

// TestControlReload: changes, and problems of the configuration with their places, reach clients.
func TestControlReload(t *testing.T) {
	var next *config.Config
	var problem error
	s, c := controlled(t, Options{
		Load: func(...config.Option) (*config.Config, error) { return next, problem },
	}, anyPort)
	next, problem = nil, errors.Join(config.Problems{
		{Warning: true, What: "odd"},
		{Place: "a.yaml:1:2", Path: "tcp.x", What: "unknown key", Hint: "Delete it."},
		{Place: "a.yaml:3:4", What: "another"},
	})
	want := "a.yaml:1:2: tcp.x: unknown key. Delete it.\na.yaml:3:4: another"
	_, planned := control.GetPlan.From(t.Context(), c)
	_, reloaded := c.Reload(t.Context())
	for _, err := range []error{planned, reloaded} {
		testutil.True(t, err != nil && err.Error() == want, "got %v, want %s", err, want)
	}
	socket := s.current().Control.Socket
	next, problem = parse(t, anyPort, "control: {socket: "+socket+"}", "log: {level: debug}",
		"tcp: {in_capsule_size: 8KiB}"), nil
	plan, err := control.GetPlan.From(t.Context(), c)
	testutil.True(t, err == nil && len(plan.Changes) == 1 && plan.Changes[0].NeedsRestart,
		"plan %+v, %v", plan, err)
	if done, err := c.Reload(t.Context()); err != nil || !reflect.DeepEqual(done, plan) {
		t.Errorf("reload %+v, %v; the plan was %+v", done, err, plan)
	}
	left, err := control.GetPlan.From(t.Context(), c)
	testutil.MustTrue(t, err == nil && len(left.Changes) == 1, "left to a restart: %+v, %v", left,
		err)
	text := left.Changes[0].Text
	testutil.True(t, strings.Contains(text, "in_capsule_size") && !strings.Contains(text, "level"),
		"left to a restart: %s", text)
}

// TestControlSocketTaken: a target that chose the socket itself runs without it.
func TestControlSocketTaken(t *testing.T) {
	s, _ := controlled(t, Options{}, anyPort)
	taken := s.current().Control.Socket
	log := new(testutil.Log)
	auto := newServer(t, Options{
		Config: parse(t, anyPort), ControlSocket: taken, Log: log.Logger(),
	})
	testutil.Check(t, auto.Start())
	testutil.True(t, strings.Contains(log.String(), "the control interface is not served"),
		"the log does not say so:\n%s", log)
	named := newServer(t, Options{
		Config: parse(t, anyPort, fmt.Sprintf("control: {socket: %s}", taken)),
	})
	err := named.Start()
	testutil.True(t, err != nil && strings.Contains(err.Error(), "control.socket: process "), "%v",
		err)
	none := newServer(t, Options{
		Config: parse(t, anyPort, `control: {socket: ""}`), ControlSocket: taken + "2",
	})
	if err := none.Start(); err != nil || none.control.Load() != nil {
		t.Errorf("%v, %v", none.control.Load(), err)
	}
}

// newEmpty makes a target without listeners, hosts and subsystems.
func newEmpty(t *testing.T) *orchestrated {
	t.Helper()
	dir := t.TempDir()
	o := &orchestrated{
		t: t, file: filepath.Join(dir, "nvmf.yaml"), managed: filepath.Join(dir, "managed"),
		volumes: dir, log: new(testutil.Log),
	}
	o.must(os.WriteFile(o.file, []byte("reactors: {count: 1, memory: 8MiB}\ncontrol: {socket: "+
		dir+"/control.sock}\nmanaged: "+o.managed+"\nmanaged_paths: ["+dir+"]\n"), 0o600))
	o.start()
	return o
}

// request makes a request as curl does, and returns the status, the header and the body.
func (o *orchestrated) request(op, body string) (int, http.Header, string) {
	o.t.Helper()
	method, path, _ := strings.Cut(op, " ")
	client := http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix",
				filepath.Join(filepath.Dir(o.file), "control.sock"))
		},
	}}
	r, err := http.NewRequestWithContext(o.t.Context(), method, "http://target"+path,
		strings.NewReader(body))
	o.must(err)
	answer, err := client.Do(r)
	o.must(err)
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	o.must(err)
	o.said.Write(text)
	return answer.StatusCode, answer.Header, string(text)
}

// TestOrchestratorExample: the commands in docs/orchestrators.md work one after another.
func TestOrchestratorExample(t *testing.T) {
	t.Parallel()
	for _, program := range []string{"bash", "curl"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skip(err)
		}
	}
	text, err := os.ReadFile("../../docs/orchestrators.md")
	testutil.Must(t, err)
	o := newEmpty(t)
	_, text, _ = bytes.Cut(text, []byte("## For orchestrators"))
	script := "shopt -s expand_aliases; set -e -o pipefail\n" +
		"nvmf-target() { set -- keys/*; cat $1; rm $1; }\n"
	for range 2 {
		_, rest, _ := bytes.Cut(text, []byte("```sh\n"))
		block, rest, ok := bytes.Cut(rest, []byte("```"))
		text = rest
		testutil.MustTrue(t, ok, "the example is not there")
		script += string(block)
	}
	o.must(os.Mkdir(filepath.Join(o.volumes, "keys"), 0o700))
	for i := range 2 {
		k, err := auth.NewKey(32, auth.SHA256)
		o.must(err)
		testutil.Secret(t, k.Reveal())
		o.must(os.WriteFile(filepath.Join(o.volumes, "keys", fmt.Sprint(i)), []byte(k.Reveal()),
			0o600))
	}
	cmd := exec.CommandContext(t.Context(), "bash", "-c", strings.NewReplacer(
		"/run/nvmf-target/", o.volumes+"/", "/srv/volumes", o.volumes, "10.0.0.1", "127.0.0.1",
		"4420", "0").Replace(script))
	cmd.Dir = o.volumes
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, secret.Mask(string(out)))
	}
	for _, want := range []string{
		`"state":"ready"`, `"secrets":["dhchap_key","dhchap_old_key"]`, "- subsystem", "- listener",
	} {
		if !strings.Contains(string(out), want) {
			t.Errorf("no %s in %s", want, secret.Mask(string(out)))
		}
	}
	if !strings.HasSuffix(string(out), "[]\n") {
		t.Errorf("objects are left: %s", secret.Mask(string(out)))
	}
}

// TestControlDisks: a client sees the disks of this machine.
func TestControlDisks(t *testing.T) {
	_, c := controlled(t, Options{}, anyPort)
	want := testutil.Value(volumes.ListDisks(nil))(t)
	list, err := control.GetDisks.From(t.Context(), c)
	testutil.True(t, err == nil && len(list) == len(want), "%+v, %v, want %+v", list, err, want)
}

// TestMDNS: open ports are announced while that is configured, with the name of the service, and
// withdrawn when it is not.
func TestMDNS(t *testing.T) {
	ifi, err := net.InterfaceByName("lo")
	if err != nil {
		t.Skipf("needs an interface lo that takes multicast: %v", err)
	}
	conn, err := net.ListenMulticastUDP("udp4", ifi,
		&net.UDPAddr{IP: net.IPv4(224, 0, 0, 251), Port: 5353})
	if err != nil {
		t.Skipf("needs an interface lo that takes multicast: %v", err)
	}
	defer func() { _ = conn.Close() }()
	n := &netiftest.Network{}
	n.Set("lo 127.0.0.1", "other0 192.0.2.1")
	l := &live{t: t, dir: t.TempDir()}
	const on = listenAny + "]\ndiscovery: {mdns: true, mdns_interfaces: [lo], nqn: " +
		"nqn.2026-11.io.nvmf-target:mdnstest}\nmetrics: {}\nshutdown_timeout: 5s\nhosts: ["
	l.s = started(t, Options{
		Config: l.parse(on, sub(anyHosts, inRAM)), Network: n, Retry: time.Hour,
	})
	port := l.s.Addrs()[0].Port()
	until := func(gone bool) {
		t.Helper()
		b := make([]byte, 9000)
		_ = conn.SetReadDeadline(time.Now().Add(testTimeout))
		for {
			n, err := conn.Read(b)
			testutil.MustTrue(t, err == nil, "gone %v: %v", gone, err)
			var m dnsmessage.Message
			if m.Unpack(b[:n]) != nil {
				continue
			}
			served, named := false, false
			for _, a := range m.Answers {
				srv, ok := a.Body.(*dnsmessage.SRVResource)
				served = served || ok && srv.Port == port && (a.Header.TTL == 0) == gone &&
					strings.HasSuffix(a.Header.Name.String(), "._nvme-disc._tcp.local.")
				txt, ok := a.Body.(*dnsmessage.TXTResource)
				named = named || ok && strings.Join(txt.TXT, " ") ==
					"p=tcp nqn=nqn.2026-11.io.nvmf-target:mdnstest"
			}
			if served && named {
				return
			}
		}
	}
	until(false)
	l.apply(listenAny, sub(anyHosts, inRAM))
	until(true)
	l.apply(on, sub(anyHosts, inRAM))
	until(false)
}
