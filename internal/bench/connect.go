package bench

import (
	"bytes"
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/fabric/rdma/verbs"
	"github.com/nvmf-target/nvmf-target/internal/load"
	"github.com/nvmf-target/nvmf-target/nvme"
	"github.com/nvmf-target/nvmf-target/nvme/auth"
	"github.com/nvmf-target/nvmf-target/nvme/host"
)

// Connection names the namespace to measure.
type Connection struct {
	Transport, Address, Subsystem string
	HostNQN                       string // "": the NQN of this machine
	NSID                          uint32
	// Key, ControllerKey and TLSKey are files with keys as printed by "nvmf-target key gen", or "".
	Key, ControllerKey, TLSKey string
	HeaderDigest, DataDigest   bool
	Timeout                    time.Duration // of commands
	// Verbs returns the RDMA stack; with IWARP, that of iWARP without a device.
	Verbs func(iwarp bool) verbs.Provider
	IWARP bool
}

// keepAlive is the default keep alive timeout of Linux.
const keepAlive = 5 * time.Second

// options returns options for nvme/host.
func (c *Connection) options(ctx context.Context) (o load.Options, err error) {
	o = load.Options{NSID: c.NSID, Timeout: c.Timeout, Host: host.Options{
		SubNQN: c.Subsystem, KATO: keepAlive, Tolerant: true,
	}}
	switch {
	case c.NSID == 0 || c.NSID == math.MaxUint32:
		return o, fmt.Errorf("--namespace %d: must be 1 to %d", c.NSID, uint32(math.MaxUint32-1))
	case c.Timeout <= 0:
		return o, fmt.Errorf("--timeout %v: must be more than 0, such as 30s", c.Timeout)
	}
	if err := nvme.ValidateNQN(c.Subsystem); err != nil {
		return o, fmt.Errorf("--subsystem: %w", err)
	}
	if err := c.identify(&o.Host); err != nil {
		return o, err
	}
	if o.Host.Key, err = readKey(c.Key, auth.ParseKey); err != nil {
		return o, fmt.Errorf("--dhchap-key-file: %w", err)
	}
	if o.Host.ControllerKey, err = readKey(c.ControllerKey, auth.ParseKey); err != nil {
		return o, fmt.Errorf("--dhchap-ctrl-key-file: %w", err)
	}
	addr, err := resolve(ctx, c.Address)
	if err != nil {
		return o, fmt.Errorf("--address %s: %w", c.Address, err)
	}
	switch c.Transport {
	case "tcp":
		if c.IWARP {
			return o, errors.New("--iwarp needs --transport rdma")
		}
		t := host.TCP{Addr: addr, HeaderDigest: c.HeaderDigest, DataDigest: c.DataDigest}
		t.PSK, err = c.psk(1)
		o.Transport = t
	case "rdma":
		if c.TLSKey != "" || c.HeaderDigest || c.DataDigest {
			return o, errors.New("TLS and digests are of --transport tcp")
		}
		o.Transport = host.RDMA{Provider: c.Verbs(c.IWARP), Addr: addr}
	default:
		err = fmt.Errorf("--transport %q: must be tcp or rdma", c.Transport)
	}
	return o, err
}

// identify sets NQN and identifier of the host: those of this machine, as nvme-cli does, or random
// ones. An identifier must not be 0 over fabrics (Base section 5.1.25.1.28).
func (c *Connection) identify(o *host.Options) error {
	own := func(name string) string {
		b, _ := os.ReadFile(name)
		return strings.TrimSpace(string(b))
	}
	o.HostID = uuid.New()
	o.HostNQN = cmp.Or(c.HostNQN, own("/etc/nvme/hostnqn"),
		nvme.UUIDPrefix+uuid.UUID(o.HostID).String())
	if err := nvme.ValidateNQN(o.HostNQN); err != nil {
		return fmt.Errorf("--host-nqn: %w", err)
	}
	text := strings.TrimPrefix(o.HostNQN, nvme.UUIDPrefix)
	if c.HostNQN == "" {
		text = cmp.Or(own("/etc/nvme/hostid"), text)
	}
	raw, err := hex.DecodeString(strings.ReplaceAll(text, "-", ""))
	if err == nil && len(raw) == len(o.HostID) && [16]byte(raw) != [16]byte{} {
		copy(o.HostID[:], raw)
	}
	return nil
}

const maxKeyFile = 4096

// readKey reads a key from a file; no name: the zero value. Errors repeat nothing of the key.
func readKey[K any](name string, parse func(string) (K, error)) (k K, err error) {
	if name == "" {
		return k, nil
	}
	if auth.IsKey(name) || auth.IsTLSKey(name) {
		return k, errors.New("everybody can see arguments: give a file with the key")
	}
	f, err := os.Open(name)
	if err != nil {
		return k, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxKeyFile))
	defer clear(b)
	if err == nil {
		k, err = parse(string(bytes.TrimSpace(b)))
	}
	if err != nil {
		err = fmt.Errorf("%s: %w", name, err)
	}
	return k, err
}

// psk returns a function that chooses the PSK of a connection by the version of its identity (TCP
// section 3.6.1.3); nil without TLS.
func (c *Connection) psk(version int) (func(hostNQN, subNQN string) (*auth.TLSPSK, error), error) {
	k, err := readKey(c.TLSKey, auth.ParseTLSKey)
	if err != nil || c.TLSKey == "" {
		return nil, err
	}
	return func(hostNQN, subNQN string) (*auth.TLSPSK, error) {
		psks, err := k.PSKs(hostNQN, subNQN)
		if err != nil {
			return nil, err
		}
		for i := range psks {
			if strings.HasPrefix(psks[i].Identity, fmt.Sprintf("NVMe%d", version)) {
				return &psks[i], nil
			}
		}
		return nil, fmt.Errorf("the names are too long for a PSK identity of version %d", version)
	}, nil
}

// connect connects. Over TLS it first offers an identity of version 1, which Linux prefers, and if
// that is refused version 0, the only one of SPDK 24.09. o keeps the accepted version.
func (c *Connection) connect(ctx context.Context, o *load.Options) (*host.Controller, error) {
	ctrl, err := host.Connect(ctx, o.Transport, o.Host)
	t, ok := o.Transport.(host.TCP)
	if !ok || t.PSK == nil || !errors.Is(err, host.ErrRefused) {
		return ctrl, err
	}
	var again error
	if t.PSK, again = c.psk(0); again != nil {
		return nil, err
	}
	if ctrl, again = host.Connect(ctx, t, o.Host); again != nil {
		return nil, err
	}
	o.Transport = t
	return ctrl, nil
}

// defaultPort is the port of NVMe over RDMA and TCP (IANA).
const defaultPort = "4420"

// resolve looks up an address.
func resolve(ctx context.Context, address string) (netip.AddrPort, error) {
	name, port, err := net.SplitHostPort(address)
	if err != nil {
		name, port = strings.Trim(address, "[]"), defaultPort
	}
	if name == "" {
		return netip.AddrPort{}, errors.New("want HOST or HOST:PORT")
	}
	n, err := net.DefaultResolver.LookupPort(ctx, "tcp", port)
	if err != nil {
		return netip.AddrPort{}, err
	}
	list, err := net.DefaultResolver.LookupNetIP(ctx, "ip", name)
	if err != nil {
		return netip.AddrPort{}, err
	}
	return netip.AddrPortFrom(list[0].Unmap(), uint16(n)), nil
}

// Target describes the measured namespace.
type Target struct {
	Transport string `json:"transport"`
	Address   string `json:"address"`
	Subsystem string `json:"subsystem"`
	NSID      uint32 `json:"nsid"`
	ID        string `json:"id"` // of the namespace
	Model     string `json:"model"`
	Serial    string `json:"serial"`
	Firmware  string `json:"firmware"`
	Bytes     uint64 `json:"bytes"`
	BlockSize int    `json:"block_size"`
	Security  string `json:"security"`

	maxTransfer int // bytes, 0 if unlimited
	maxDepth    int
}

// String identifies the namespace. Text from the target is quoted.
func (t *Target) String() string {
	return fmt.Sprintf("namespace %d of %s at %s %s: %s, %s in blocks of %d bytes; model %q, "+
		"serial %q", t.NSID, t.Subsystem, t.Transport, t.Address, t.ID, size(float64(t.Bytes)),
		t.BlockSize, t.Model, t.Serial)
}

// probe connects once and identifies the namespace.
func (c *Connection) probe(ctx context.Context, o *load.Options) (*Target, error) {
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	ctrl, err := c.connect(ctx, o)
	if err != nil {
		return nil, c.explain(err)
	}
	defer ctrl.Close()
	ns, err := ctrl.IdentifyNamespace(ctx, c.NSID)
	if err == nil {
		err = load.Usable(ns)
	}
	if err != nil {
		return nil, fmt.Errorf("namespace %d: %w", c.NSID, err)
	}
	id, block := ctrl.Identity(), 1<<ns.Format().LBADS
	t := &Target{
		Transport: c.Transport, Address: c.Address, Subsystem: c.Subsystem, NSID: c.NSID,
		Model: nvme.Text(id.MN[:]), Serial: nvme.Text(id.SN[:]), Firmware: nvme.Text(id.FR[:]),
		Bytes: ns.NSZE * uint64(block), BlockSize: block, maxTransfer: ctrl.MaxTransfer(),
		maxDepth: max(1, int(ctrl.CAP().MQES())), Security: c.security(), ID: "no identifier",
	}
	ids, _ := ctrl.NamespaceIDs(ctx, c.NSID) // old controllers have none
	for _, d := range ids {
		switch d.Type {
		case nvme.IDTypeUUID:
			t.ID = "UUID " + uuid.UUID(d.ID).String()
		case nvme.IDTypeNGUID, nvme.IDTypeEUI64:
			if !strings.HasPrefix(t.ID, "UUID") {
				t.ID = fmt.Sprintf("%s %x", map[bool]string{true: "EUI-64", false: "NGUID"}[len(
					d.ID) == 8], d.ID)
			}
		}
	}
	return t, ctrl.Shutdown(ctx)
}

// security describes the protection of the connections.
func (c *Connection) security() string {
	var list []string
	if c.TLSKey != "" {
		list = append(list, "TLS")
	}
	if c.Key != "" {
		list = append(list, "DH-HMAC-CHAP if the target asks for it")
	}
	return cmp.Or(strings.Join(list, ", "), "none")
}

// explain adds a hint to an error of connecting.
func (c *Connection) explain(err error) error {
	var hint string
	var refused *host.ConnectError
	switch {
	case errors.Is(err, host.ErrNoKey):
		hint = "give --dhchap-key-file"
	case errors.As(err, &refused):
		hint = "the target refuses the host or the subsystem: its log says why; see --host-nqn, " +
			"--subsystem"
	case errors.Is(err, host.ErrRefused) && c.TLSKey == "" && c.Transport == "tcp":
		hint = "if the target requires TLS, give --tls-key-file"
	case errors.Is(err, unix.EADDRINUSE) && c.Transport == "rdma":
		hint = "without an RDMA device one program of a network namespace can use RDMA: run " +
			"bench on another machine or in another namespace, or give --transport tcp"
	case errors.Is(err, verbs.ErrNotBuilt), errors.Is(err, verbs.ErrNoDevice):
		hint = "without RDMA there is --transport tcp"
	default:
		return err
	}
	return fmt.Errorf("%w (%s)", err, hint)
}
