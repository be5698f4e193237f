package convert

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
)

// tree makes a tree of files, directories (DIR/) and links (NAME -> TARGET), one a line. The
// content of a file follows a blank.
func tree(t *testing.T, text string) string {
	t.Helper()
	dir := t.TempDir()
	for line := range strings.Lines(text) {
		name, content, _ := strings.Cut(strings.TrimSpace(line), " ")
		path := filepath.Join(dir, name)
		err := os.MkdirAll(filepath.Dir(path), 0o700)
		switch to, link := strings.CutPrefix(content, "-> "); {
		case err != nil || name == "":
		case link:
			err = os.Symlink(to, path)
		case strings.HasSuffix(name, "/"):
			err = os.MkdirAll(path, 0o700)
		default:
			err = os.WriteFile(path, []byte(content+"\n"), 0o600)
		}
		testutil.Must(t, err)
	}
	return dir
}

// TestReadNVMet: the result for a tree of configfs is the one that nvmetcli would save.
func TestReadNVMet(t *testing.T) {
	dir := tree(t, `
discovery_nqn nqn.2026-11.com.example:discovery
hosts/hostnqn/dhchap_key DHHC-1:00:dYaw096krZ260qdUC32Qt6MOOJ29Txf41rRRmsWeFd44CmkR:
hosts/hostnqn/dhchap_hash hmac(sha256)
hosts/hostnqn/dhchap_dhgroup null
subsystems/a/attr_allow_any_host 0
subsystems/a/attr_serial 0123456789abcdef
subsystems/a/attr_model Linux
subsystems/a/attr_endless -> /dev/zero
subsystems/a/allowed_hosts/hostnqn -> ../../../hosts/hostnqn
subsystems/a/namespaces/10/device_path /dev/sdc
subsystems/a/namespaces/10/device_uuid 22222222-2222-4222-8222-222222222222
subsystems/a/namespaces/10/enable 1
subsystems/a/namespaces/10/ana_grpid 2
subsystems/a/namespaces/10/buffered_io 0
subsystems/a/namespaces/2/device_path /srv/a.img
subsystems/a/namespaces/2/device_nguid 11111111-1111-1111-1111-111111111111
subsystems/a/namespaces/2/enable 1
subsystems/a/namespaces/2/ana_grpid 1
subsystems/a/passthru/device_path (null)
subsystems/a/passthru/enable 0
ports/1/addr_adrfam ipv6
ports/1/addr_traddr ::
ports/1/addr_trsvcid 4420
ports/1/addr_trtype tcp
ports/1/addr_treq not specified
ports/1/addr_tsas none
ports/1/param_inline_data_size 16384
ports/1/subsystems/a -> ../../../subsystems/a
ports/1/ana_groups/1/ana_state optimized
ports/1/referrals/r/addr_traddr 192.0.2.9
ports/1/referrals/r/addr_trsvcid 8009
ports/1/referrals/r/addr_trtype tcp
ports/1/referrals/r/addr_adrfam ipv4
ports/1/referrals/r/enable 1
`)
	if err := unix.Mkfifo(filepath.Join(dir, "subsystems/a/attr_fifo"), 0o600); err != nil {
		t.Fatal(err) // reading it would never end
	}
	text := testutil.Value(ReadNVMet(dir))(t)
	r := testutil.Value(NVMet("configfs", text, Options{Machine: usual{}, Live: true}))(t)
	const want = `# Converted from the configuration of nvmet in configfs.
#
# Without counterpart, or to be looked at:
#   configfs: there are keys in the result: nobody else may read it (chmod 600)
listeners:
  - {transport: tcp, address: "::", port: 4420, ana_states: {2: "inaccessible"}}
discovery:
  nqn: nqn.2026-11.com.example:discovery
  referrals:
    - {transport: tcp, address: 192.0.2.9, port: 8009}
hosts:
  - nqn: "hostnqn"
    dhchap_key: "DHHC-1:00:dYaw096krZ260qdUC32Qt6MOOJ29Txf41rRRmsWeFd44CmkR:"
    dhchap_hash: ["sha256"]
subsystems:
  - nqn: "a"
    serial: "0123456789abcdef"
    model: "Linux"
    hosts:
      - "hostnqn"
    namespaces:
      - nsid: 2
        backend: file
        path: /srv/a.img
        block_size: 4KiB
        nguid: "11111111111111111111111111111111"
      - nsid: 10
        backend: block # better its name below /dev/disk/by-id, which stays the same
        path: /dev/sdc
        uuid: "22222222-2222-4222-8222-222222222222"
        ana_group: 2
`
	testutil.Equal(t, string(r.YAML), want, "%s", r.YAML)
	testutil.Fails(t, testutil.Err(ReadNVMet(t.TempDir())), NVMetTree, "another directory")
}

// fakeSPDK answers at a socket as SPDK does, and returns its path.
func fakeSPDK(t *testing.T, answers map[string]string) string {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "spdk.sock")
	l := testutil.Value(net.Listen("unix", socket))(t)
	done := make(chan struct{})
	t.Cleanup(func() { l.Close(); <-done })
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			d := json.NewDecoder(c)
			for {
				var q struct {
					ID     int
					Method string
					Params struct{ Name, NQN string }
				}
				if d.Decode(&q) != nil {
					break
				}
				name := strings.TrimSpace(q.Method + " " + q.Params.Name + q.Params.NQN)
				answer := fmt.Sprintf(`"error": {"code": -32601, "message": "no %s"}`, name)
				if a, ok := answers[name]; ok {
					answer = `"result": ` + a
				}
				fmt.Fprintf(c, `{"jsonrpc": "2.0", "id": %d, %s}`, q.ID, answer)
			}
			c.Close()
		}
	}()
	return socket
}

// TestReadSPDK: a running SPDK is asked for its configuration and its ANA states. The answers are
// recorded from SPDK 26.09-pre: the first word is the method, the other one a name or NQN. Paths
// were replaced.
func TestReadSPDK(t *testing.T) {
	read := func(name string) []byte {
		return testutil.Value(os.ReadFile(filepath.Join("testdata", "live", name)))(t)
	}
	recorded, all := map[string]json.RawMessage{}, map[string]string{}
	testutil.Must(t, json.Unmarshal(read("spdk.json"), &recorded))
	for name, answer := range recorded {
		all[name] = string(answer)
	}
	all["framework_get_config nbd"] = "null" // as other versions answer without settings
	text := testutil.Value(ReadSPDK(t.Context(), fakeSPDK(t, all)))(t)
	r := testutil.Value(SPDK("spdk.sock", text, Options{Machine: usual{}, Live: true}))(t)
	testutil.Equal(t, string(r.YAML), string(read("spdk.yaml")), "%s", r.YAML)
	for answers, want := range map[string]string{
		"":                     "framework_get_subsystems of SPDK: there is no such method",
		`[{"subsystem": "x"}]`: "framework_get_config of SPDK: there is no such method: no framework_get_config x",
		`7`:                    "framework_get_subsystems of SPDK: json:",
	} {
		some := map[string]string{}
		if answers != "" {
			some["framework_get_subsystems"] = answers
		}
		_, err := ReadSPDK(t.Context(), fakeSPDK(t, some))
		testutil.Fails(t, err, want, "%s", answers)
	}
	testutil.True(t, testutil.Err(ReadSPDK(t.Context(), "/nowhere")) != nil, "no socket, no error")
}

// TestLocal: the properties of a file on this machine are found, and a missing file is unknown. The
// block size of a device is the logical one.
func TestLocal(t *testing.T) {
	file := filepath.Join(t.TempDir(), "f")
	testutil.Must(t, os.WriteFile(file, nil, 0o600))
	s, ok := Local{}.Storage(file)
	testutil.True(t, ok && !s.Device && s.BlockSize >= 512 && s.FileSystem >= 512, "%+v, %v", s, ok)
	for _, path := range []string{file + "x", filepath.Dir(file)} {
		if s, ok := (Local{}).Storage(path); ok {
			t.Errorf("%s: %+v", path, s)
		}
	}
	s = Storage{Device: true}
	s.ask(func(request uint) (int, error) {
		return map[uint]int{unix.BLKSSZGET: 512, unix.BLKPBSZGET: 4096}[request], nil
	})
	testutil.Equal(t, s, Storage{Device: true, BlockSize: 512}, "a device")
}
