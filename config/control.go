package config

import (
	"fmt"
	"io/fs"
	"net/netip"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/nvmf-target/nvmf-target/config/lang"
)

// Control says where operators reach the running target.
type Control struct {
	// Socket is a path, AutoSocket, or "" for none.
	Socket string
	// Mode and Group belong to the socket; Group "" is the group of the process.
	Mode  fs.FileMode
	Group string
	// Listen is invalid if nothing is served on TCP. Otherwise the files are set.
	Listen                     netip.AddrPort
	Certificate, Key, ClientCA string
	// Roles may be empty, which gives everybody every role.
	Roles []Role
}

// AutoSocket lets the program choose the socket.
const AutoSocket = "auto"

func (c *Control) keys() []lang.Key {
	c.Socket, c.Mode = AutoSocket, 0o600
	keys := []lang.Key{
		lang.NewKey("socket", lang.Checked(&c.Socket, "absolute path, `auto` or `\"\"`",
			lang.Schema{"pattern": "^(/.*|auto|)$", "maxLength": maxSocket}, validateSocket),
			"Path of the socket; its directory is created if it is missing. `auto` is "+
				"`control.sock` in `$RUNTIME_DIRECTORY` if that is set; otherwise, in "+
				"`/run/nvmf-target` for root, and in `$XDG_RUNTIME_DIR/nvmf-target` for other "+
				"users; `\"\"` means no socket. Set it when several targets run on a machine."),
		lang.NewKey("mode", fileMode(&c.Mode),
			"Permissions of the socket: users that may open it may do everything, unless `roles` "+
				"says otherwise. Set it to `0660` together with `group`."),
		lang.NewKey("group", lang.Text(&c.Group),
			"Group of the socket, by name or number. Set it when users other than root and the "+
				"user of the target operate it.").Without("that of the process"),
		lang.NewKey("listen", addrPort(&c.Listen),
			"IP address and TCP port for clients that authenticate with a certificate (TLS 1.3); "+
				"they may do everything, unless `roles` says otherwise. Set it and the keys that "+
				"follow when an orchestrator runs elsewhere.").Without("not served"),
		lang.NewKey("certificate", lang.Path(&c.Certificate),
			"PEM file with the certificate of the target and its intermediate certificates. A "+
				"reload reads the three files again. Set it with `listen`.").Without("none"),
		lang.NewKey("key", lang.Path(&c.Key),
			"PEM file with the private key of `certificate`. Set it with `listen`.").
			Without("none"),
		lang.NewKey("client_ca", lang.Path(&c.ClientCA),
			"PEM file with the CAs of client certificates: every client with a certificate from "+
				"them may connect. Set it with `listen`, to a CA that is used for nothing else.").
			Without("none"),
	}
	for i := range keys {
		keys[i] = keys[i].NeedsRestart()
	}
	return append(keys, lang.NewKey("roles", lang.List(&c.Roles, 0, 256, (*Role).value),
		"The roles of clients: each entry has one of `subject`, `user` and `group`. If several "+
			"entries match a client, it has the highest of their roles. If there are entries, "+
			"other clients may do nothing, except root and the user of the target at the "+
			"socket. Without entries, all clients that can connect may do everything. Set it "+
			"when not all of them should."))
}

// validate checks the keys of the interface on TCP together.
func (c *Control) validate(v *validator) {
	for _, f := range []struct{ key, file string }{
		{"certificate", c.Certificate}, {"key", c.Key}, {"client_ca", c.ClientCA},
	} {
		path, listen := "control."+f.key, c.Listen.IsValid()
		v.need(path, f.file != "", listen, "control.listen")
		if f.file == "" && listen {
			v.Add(path, "is missing", "control.listen needs it: clients must authenticate.")
		}
	}
	v.roles(c)
	v.serves("control.listen", c.Listen)
}

// maxSocket is the longest path of a unix socket (unix(7): sun_path, less the zero at its end).
const maxSocket = 107

// validateSocket checks control.socket.
func validateSocket(path string) (what, hint string) {
	switch {
	case path == "" || path == AutoSocket:
	case !filepath.IsAbs(path):
		return fmt.Sprintf("%q is not an absolute path", lang.Printable(path)),
			"Begin it with /, or write auto, or \"\" for no socket."
	case len(path) > maxSocket:
		return fmt.Sprintf("the path has %d characters", len(path)),
			fmt.Sprintf("The path of a socket has at most %d.", maxSocket)
	}
	return "", ""
}

// fileMode is a file mode in octal digits, with or without quotes. The owner can read and write.
func fileMode(p *fs.FileMode) lang.Value {
	// YAML has several ways to write an octal number, so numbers are not checked.
	rules := lang.Schema{"type": []string{"string", "integer"}, "pattern": "^(0o?)?6[0246][0246]$"}
	return lang.Scalar("octal digits", "octal digits, 0600 to 0666", rules,
		func() string { return fmt.Sprintf("%04o", uint32(*p)) },
		func(n *yaml.Node) (what, hint string) {
			v, err := strconv.ParseUint(strings.TrimPrefix(n.Value, "0o"), 8, 32)
			if err != nil || v&^0o666 != 0 || v&0o600 != 0o600 {
				return lang.Printable(n.Value) + " is not possible here",
					"Write 0600, or 0660 with a group."
			}
			*p = fs.FileMode(v)
			return "", ""
		})
}

// Role grants a role on the control interface to the client given by one of the other fields.
type Role struct {
	// Subject is the subject of a certificate (RFC 2253). User and Group are names or numbers.
	Subject, User, Group string
	// Role is read, operate or admin.
	Role string
}

func (r *Role) value() lang.Value {
	const hint = "Delete one of the two."
	return lang.Mapping{
		lang.NewKey("subject", lang.Unique(lang.Checked(&r.Subject, "subject of a certificate",
			lang.Schema{"pattern": attribute.String()}, func(s string) (what, hint string) {
				if !attribute.MatchString(s) {
					return fmt.Sprintf("%q is not the subject of a certificate", lang.Printable(s)),
						"Write all of it, as the log does with the key certificate: CN=NAME,O=..."
				}
				return "", ""
			}), hint),
			"Clients with a certificate of exactly this subject, as logged with the key "+
				"`certificate`. Set it to give a role to clients on TCP.").Without("none"),
		lang.NewKey("user", lang.Unique(lang.Text(&r.User), hint),
			"Processes of this user, by name or number, at the socket. Set it to give a role to "+
				"one user.").Without("none"),
		lang.NewKey("group", lang.Unique(lang.Text(&r.Group), hint),
			"Processes at the socket with this group, by name or number, even as a "+
				"supplementary group. Set it to give a role to several users.").Without("none"),
		lang.NewKey("role", lang.OneOf(&r.Role, "read", "operate", "admin"),
			"`read` shows everything except traces and profiles; `operate` also shows "+
				"traces, reloads, restarts, drains, pauses, disconnects and sets ANA states; "+
				"`admin` also creates, deletes, resizes and takes profiles.").
			Require("Use one of: read, operate, admin."),
	}
}

var attribute = regexp.MustCompile(`^[A-Za-z0-9.]+=`)

func (v *validator) roles(c *Control) {
	for i, r := range c.Roles {
		given := 0
		for _, name := range []string{r.Subject, r.User, r.Group} {
			if name != "" {
				given++
			}
		}
		path := fmt.Sprintf("control.roles[%d]", i)
		if given != 1 && !v.Bad(path+".subject") {
			v.Add(path, fmt.Sprintf("%d of subject, user and group are given", given),
				"Give one of them.")
		} else {
			v.need(path+".subject", r.Subject != "", c.Listen.IsValid(), "control.listen")
		}
	}
}
