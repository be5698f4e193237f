package convert

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The default places of a running target of Linux and of SPDK.
const (
	NVMetTree  = "/sys/kernel/config/nvmet"
	SPDKSocket = "/var/tmp/spdk.sock"
)

// groups prefix attributes: nvmetcli saves GROUP_NAME as NAME of GROUP (nvmet/nvme.py).
var groups = []string{
	"addr", "ana", "attr", "device", "dhchap", "discovery", "param", "resv",
}

// ReadNVMet reads the running nvmet, below dir in configfs, in the form of nvmetcli.
func ReadNVMet(dir string) ([]byte, error) {
	tree, err := nvmetObject(dir)
	if err != nil {
		return nil, err
	}
	if tree["subsystems"] == nil || tree["ports"] == nil {
		return nil, fmt.Errorf("%s has no subsystems and ports: it is not the tree of nvmet in "+
			"configfs, which is %s", dir, NVMetTree)
	}
	return json.MarshalIndent(tree, "", "  ")
}

// identifies has the member for the name of an object, by the directory of the object.
var identifies = map[string]string{
	"hosts": "nqn", "subsystems": "nqn", "namespaces": "nsid", "ports": "portid",
	"ana_groups": "grpid", "referrals": "name",
}

// nvmetObject reads an object of configfs: its attributes and the objects inside it.
func nvmetObject(dir string) (map[string]any, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	out := map[string]any{}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if e.Type().IsRegular() { // a copy of a tree may have other files
			if err := nvmetAttribute(out, path); err != nil {
				return nil, err
			}
		}
		if !e.IsDir() {
			continue
		}
		if e.Name() == "passthru" {
			o, err := nvmetObject(path)
			if err != nil {
				return nil, err
			}
			out["passthru"] = []any{o}
			continue
		}
		list, err := nvmetList(path)
		if err != nil {
			return nil, err
		}
		out[e.Name()] = list
	}
	return out, nil
}

// nvmetList reads the objects in a directory, or the names of links.
func nvmetList(dir string) (list []any, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	kind := filepath.Base(dir)
	if kind == "namespaces" || kind == "ports" || kind == "ana_groups" {
		slices.SortFunc(entries, func(a, b os.DirEntry) int {
			return cmpNumbers(a.Name(), b.Name())
		})
	}
	list = []any{}
	for _, e := range entries {
		if e.Type()&os.ModeSymlink != 0 {
			list = append(list, e.Name())
			continue
		}
		if !e.IsDir() {
			continue
		}
		o, err := nvmetObject(filepath.Join(dir, e.Name()))
		if err != nil {
			return nil, err
		}
		if key := identifies[kind]; key != "" {
			o[key] = e.Name()
		}
		list = append(list, o)
	}
	return list, nil
}

func cmpNumbers(a, b string) int {
	x, err1 := strconv.Atoi(a)
	y, err2 := strconv.Atoi(b)
	if err1 != nil || err2 != nil {
		return strings.Compare(a, b)
	}
	return x - y
}

// maxAttribute is the maximum size of an attribute of configfs, in bytes.
const maxAttribute = 4096

// nvmetAttribute adds an attribute to an object, unless it is write-only.
func nvmetAttribute(out map[string]any, path string) error {
	f, err := os.Open(path)
	if errors.Is(err, os.ErrPermission) && os.Geteuid() != 0 {
		return fmt.Errorf("%w: run it as root", err)
	} else if err != nil {
		return nil
	}
	defer func() { _ = f.Close() }()
	b, err := io.ReadAll(io.LimitReader(f, maxAttribute))
	if err != nil {
		return nil
	}
	name, text := filepath.Base(path), strings.TrimSpace(string(b))
	group, rest, found := strings.Cut(name, "_")
	switch {
	case name == "ana_grpid" || !found || !slices.Contains(groups, group):
		out[name] = text
	default:
		o, _ := out[group].(map[string]any)
		if o == nil {
			o = map[string]any{}
			out[group] = o
		}
		o[rest] = text
	}
	return nil
}

// spdkTime bounds the time of all requests to a running SPDK.
const spdkTime = 30 * time.Second

// ReadSPDK asks a running SPDK by its RPC socket for its configuration. The result has the form
// that rpc.py save_config writes, plus the ANA states, which save_config omits. It changes nothing.
func ReadSPDK(ctx context.Context, socket string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, spdkTime)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, fmt.Errorf("%w: is it the RPC socket of an SPDK that runs (spdk_tgt -r)?", err)
	}
	defer func() { _ = conn.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	c := &spdkClient{conn: conn, replies: json.NewDecoder(io.LimitReader(conn, 2*MaxFile))}
	var parts []struct{ Subsystem string }
	if err := c.call("framework_get_subsystems", nil, &parts); err != nil {
		return nil, err
	}
	type part struct {
		Subsystem string            `json:"subsystem"`
		Config    []json.RawMessage `json:"config"`
	}
	var out []part
	for _, p := range parts {
		saved := part{Subsystem: p.Subsystem}
		var config json.RawMessage
		params := map[string]any{"name": p.Subsystem}
		if err := c.call("framework_get_config", params, &config); err != nil {
			return nil, err
		}
		if string(config) != "null" {
			saved.Config = append(saved.Config, config)
		}
		if p.Subsystem == "nvmf" {
			states, err := c.states()
			if err != nil {
				return nil, err
			}
			saved.Config = append(saved.Config, states...)
		}
		out = append(out, saved)
	}
	return json.MarshalIndent(map[string][]part{"subsystems": out}, "", "  ")
}

// spdkClient makes calls of JSON-RPC 2.0, one at a time.
type spdkClient struct {
	conn    net.Conn
	replies *json.Decoder
	id      int
}

// noMethod is the error code for an unknown method (JSON-RPC 2.0 section 5.1).
const noMethod = -32601

var errNoMethod = errors.New("there is no such method")

func (c *spdkClient) call(method string, params map[string]any, result any) error {
	c.id++
	request := map[string]any{"jsonrpc": "2.0", "id": c.id, "method": method}
	if params != nil {
		request["params"] = params
	}
	var reply struct {
		ID     int             `json:"id"`
		Result json.RawMessage `json:"result"`
		Error  *struct {
			Code    int    `json:"code"`
			Message string `json:"message"`
		} `json:"error"`
	}
	err := json.NewEncoder(c.conn).Encode(request)
	if err == nil {
		err = c.replies.Decode(&reply)
	}
	switch {
	case err != nil:
		return fmt.Errorf("%s of SPDK: %w", method, err)
	case reply.ID != c.id:
		return fmt.Errorf("%s of SPDK: the answer belongs to another call", method)
	case reply.Error != nil && reply.Error.Code == noMethod:
		return fmt.Errorf("%s of SPDK: %w: %s", method, errNoMethod, short(reply.Error.Message))
	case reply.Error != nil:
		return fmt.Errorf("%s of SPDK: %s", method, short(reply.Error.Message))
	}
	if err := json.Unmarshal(reply.Result, result); err != nil {
		return fmt.Errorf("%s of SPDK: %w", method, err)
	}
	return nil
}

// states returns RPCs that set the ANA states other than optimized.
func (c *spdkClient) states() (rpcs []json.RawMessage, err error) {
	var subsystems []struct {
		NQN, Subtype string
	}
	if err := c.call("nvmf_get_subsystems", nil, &subsystems); err != nil {
		return nil, err
	}
	for _, s := range subsystems {
		if s.Subtype != "NVMe" {
			continue
		}
		type groupState struct {
			Group uint64 `json:"ana_group"`
			State string `json:"ana_state"`
		}
		var listeners []struct {
			Address    map[string]any `json:"address"`
			groupState                // of older versions, for all groups
			States     []groupState   `json:"ana_states"`
		}
		params := map[string]any{"nqn": s.NQN}
		err := c.call("nvmf_subsystem_get_listeners", params, &listeners)
		if err != nil && !errors.Is(err, errNoMethod) { // before 20.10 there was no ANA
			return nil, err
		}
		for _, l := range listeners {
			for _, g := range append([]groupState{l.groupState}, l.States...) {
				if g.State == "" || g.State == "optimized" {
					continue
				}
				rpc, err := json.Marshal(map[string]any{
					"method": "nvmf_subsystem_listener_set_ana_state",
					"params": map[string]any{
						"nqn": s.NQN, "listen_address": l.Address, "ana_state": g.State,
						"anagrpid": g.Group,
					},
				})
				if err != nil {
					return nil, err
				}
				rpcs = append(rpcs, rpc)
			}
		}
	}
	return rpcs, nil
}
