package config

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/nvmf-target/nvmf-target/config/lang"
)

// versionLine begins a file of Group.File.
const versionLine = "# Version of the configuration of the group, which replaces this file: "

// File makes GroupFile from a version of the configuration that gateways share: a JSON object with
// the keys hosts and subsystems. It adds the settings of this gateway, and refuses such settings
// and secrets in the text. The result is checked when it is loaded. version is a line that names
// the version.
func (g *Group) File(text, version string) ([]byte, error) {
	root, err := lang.ParseBody([]byte(text), secretFiles()...)
	if err != nil {
		return nil, err
	}
	if lang.Slot(root, "subsystems") == nil {
		return nil, lang.BadRequest("subsystems", "is missing",
			"Write subsystems: [] to remove all.")
	}
	for i := 0; i+1 < len(root.Content); i += 2 {
		key, list := root.Content[i].Value, root.Content[i+1]
		for j, entry := range list.Content {
			path := fmt.Sprintf("%s[%d].", key, j)
			switch key {
			case "hosts":
				err = g.openSecrets(path, entry)
			case "subsystems":
				err = g.complete(path, entry)
			}
			if err != nil {
				return nil, err
			}
		}
		if key != "hosts" && key != "subsystems" {
			return nil, lang.BadRequest(lang.Printable(key), "is not shared by gateways",
				"Write it in the configuration file of each.")
		}
	}
	body, err := yaml.Marshal(root)
	return append([]byte(versionLine+version+"\n"), body...), err
}

// secretFiles lists the keys of hosts that name a file with a secret.
func secretFiles() (files []string) {
	for _, key := range secretKeys() {
		files = append(files, key+lang.FileSuffix)
	}
	return files
}

// GroupVersion returns the name of the version in a file of Group.File, "" if there is none.
func GroupVersion(file []byte) string {
	line, _, _ := strings.Cut(string(file), "\n")
	if version, ok := strings.CutPrefix(line, versionLine); ok {
		return version
	}
	return ""
}

// sealed begins an encrypted secret.
const sealed = "sealed-1:"

// cipher returns the cipher of secrets: AES-256-GCM. It is not valid without Key.
func (g *Group) cipher() cipher.AEAD {
	key := sha256.Sum256([]byte("nvmf-target group.key " + g.Key()))
	block, _ := aes.NewCipher(key[:])             // fails only for other lengths
	gcm, _ := cipher.NewGCMWithRandomNonce(block) // and this for other ciphers
	return gcm
}

// purpose is authenticated with a secret, so that it counts only for this key of this host.
func purpose(host, key string) []byte { return []byte(key + " " + host) }

// Seal encrypts the secrets in a text for File. It returns a text that File refuses as it is, and
// without Key every text.
func (g *Group) Seal(text string) string {
	var all map[string]any
	_, err := lang.ParseBody([]byte(text), secretFiles()...)
	if g.Key == nil || err != nil || decodeNumbers(text, &all) != nil {
		return text
	}
	changed := false
	hosts, _ := all["hosts"].([]any)
	for _, h := range hosts {
		host, _ := h.(map[string]any)
		nqn, _ := host["nqn"].(string)
		for _, key := range secretKeys() {
			secret, ok := host[key].(string)
			if ok && !strings.HasPrefix(secret, sealed) {
				data := g.cipher().Seal(nil, nil, []byte(secret), purpose(nqn, key))
				host[key] = sealed + base64.StdEncoding.EncodeToString(data)
				changed = true
			}
		}
	}
	if !changed {
		return text
	}
	data, _ := json.Marshal(all) // it was JSON
	return string(data)
}

// Same reports whether File makes the same of two texts. A secret encrypted twice differs in them.
func (g *Group) Same(a, b string) bool {
	one, err := g.File(a, "")
	other, err2 := g.File(b, "")
	return err == nil && err2 == nil && bytes.Equal(one, other)
}

// openSecrets decrypts the secrets of a host. It returns an error if one is not encrypted, or if a
// file with one may be another file elsewhere.
func (g *Group) openSecrets(path string, host *yaml.Node) error {
	for _, key := range secretKeys() {
		at := lang.Slot(host, key)
		if at == nil {
			continue
		}
		text, ok := strings.CutPrefix((*at).Value, sealed)
		switch {
		case !ok:
			return lang.BadRequest(path+key, "secrets are not kept in the cluster",
				"Write "+key+lang.FileSuffix+", the path of a file with the key on each gateway, "+
					"or set group.key at all gateways.")
		case g.Key == nil:
			return lang.BadRequest(path+key, "is encrypted", "Set group.key as at other gateways.")
		}
		nqn := ""
		if n := lang.Slot(host, "nqn"); n != nil {
			nqn = lang.Unquoted((*n).Value)
		}
		data, err := base64.StdEncoding.DecodeString(text)
		if err == nil {
			data, err = g.cipher().Open(nil, nil, data, purpose(nqn, key))
		}
		if err != nil {
			return lang.BadRequest(path+key, "cannot be decrypted: it was damaged or moved, or "+
				"group.key is another one than at the gateway that has stored it",
				"Set the same group.key everywhere, and apply the configuration again.")
		}
		*at = lang.TextNode(string(data))
	}
	for _, key := range secretFiles() {
		if at := lang.Slot(host, key); at != nil && !filepath.IsAbs((*at).Value) {
			return lang.BadRequest(path+key, "is not an absolute path", "Gateways read it.")
		}
	}
	return nil
}

// complete adds the settings of this gateway to a subsystem.
func (g *Group) complete(path string, sub *yaml.Node) error {
	own := func(path string, n *yaml.Node, keys ...string) error {
		for _, key := range keys {
			if lang.Slot(n, key) != nil {
				return lang.BadRequest(path+key, "is a setting of each gateway",
					"Delete it; the key group has it.")
			}
		}
		return nil
	}
	if sub.Kind != yaml.MappingNode {
		return nil // an error when it is loaded
	}
	if err := own(path, sub, "cntlid_min", "cntlid_max"); err != nil {
		return err
	}
	add(sub, "cntlid_min", number(uint32(g.CNTLIDMin)))
	add(sub, "cntlid_max", number(uint32(g.CNTLIDMax)))
	list := lang.Slot(sub, "namespaces")
	if list == nil {
		return nil
	}
	for i, n := range (*list).Content {
		path := fmt.Sprintf("%snamespaces[%d].", path, i)
		if err := own(path, n, "ceph"); err != nil {
			return err
		}
		backend := lang.Slot(n, "backend")
		if backend == nil || (*backend).Value != "rbd" {
			return lang.BadRequest(path+"backend", "is not rbd, so each gateway would serve "+
				"different data", "Write the namespace in the configuration file of a gateway.")
		}
		access := mappingNode("conf", lang.TextNode(g.Conf))
		add(access, "user", lang.TextNode(g.User))
		if g.Keyring != "" {
			add(access, "keyring", lang.TextNode(g.Keyring))
		}
		add(n, "ceph", access)
	}
	return nil
}

// add adds a key to a mapping that does not have it.
func add(mapping *yaml.Node, key string, value *yaml.Node) {
	mapping.Content = append(mapping.Content, mappingNode(key, value).Content...)
}
