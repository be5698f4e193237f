package cli

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nvmf-target/nvmf-target/nvme/auth"
)

// maxKeyFile is the read limit of key files, in bytes; keys are shorter.
const maxKeyFile = 4 << 10

// keyCommand makes and checks keys, like "nvme gen-dhchap-key" and "nvme check-dhchap-key".
func keyCommand() *cobra.Command {
	var length, hash uint8
	var tls bool
	gen := &cobra.Command{
		Use:   "gen",
		Short: "Make a random key and print it",
		Long: "Make a random key and print it, in the format of dhchap_key_file and " +
			"\"nvme connect --dhchap-secret\", or with --tls in the format of tls_key_file and " +
			"\"nvme check-tls-key\". Redirect it to a file that nobody else can read (umask 077).",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			h := auth.Hash(hash)
			var k interface{ Reveal() string }
			var err error
			switch {
			case !tls:
				k, err = auth.NewKey(cmp.Or(int(length), h.Size(), auth.SHA256.Size()), h)
			case length > 0:
				return errors.New("the length of a key for TLS is that of the hash: leave out " +
					"--key-length")
			default:
				if !c.Flags().Changed("hmac") {
					h = auth.SHA256 // like nvme gen-tls-key
				}
				k, err = auth.NewTLSKey(h)
			}
			if err == nil {
				_, err = fmt.Fprintln(c.OutOrStdout(), k.Reveal())
			}
			return err
		},
	}
	gen.Flags().Uint8VarP(&length, "key-length", "l", 0,
		"length of the secret in bytes: 32, 48 or 64 (default: the length of the hash)")
	gen.Flags().Uint8VarP(&hash, "hmac", "m", 0,
		"hash of the transformation: 0 none, 1 SHA-256, 2 SHA-384, 3 SHA-512 (not with --tls)")
	gen.Flags().BoolVar(&tls, "tls", false, "make a key for TLS, by default with SHA-256")
	check := &cobra.Command{
		Use:     "check [FILE]",
		Aliases: []string{"show"},
		Short:   "Check the key in a file, or on standard input, and describe it",
		Args:    cobra.MaximumNArgs(1),
		RunE:    checkKey,
	}
	return Group("key",
		"Make or check a key for authentication (DH-HMAC-CHAP) or TLS",
		gen, check, identityCommand())
}

// identityCommand prints the entry of a keyring, as "nvme gen-tls-key" inserts it.
func identityCommand() *cobra.Command {
	var host, sub string
	c := &cobra.Command{
		Use:   "psk-identity [FILE]",
		Short: "Print the PSK identities of a key for TLS",
		Long: "Print the identities of the PSKs that are derived from the key for TLS in a file, " +
			"or on standard input, for a host and a subsystem, as \"keyctl show\" lists them on " +
			"a host with this key. They are not secret. \"compat\" stands for nvme gen-tls-key " +
			"--compat, and libnvme before 1.16.",
		Args: cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			text, name, err := readKey(c, args)
			if err != nil {
				return err
			}
			k, err := auth.ParseTLSKey(text)
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			psks, err := k.PSKs(host, sub)
			for _, p := range psks {
				clear(p.Secret)
				labels := "RFC 8446"
				if p.Compat {
					labels = "compat"
				}
				_, err = fmt.Fprintf(c.OutOrStdout(), "%s: %s\n", labels, p.Identity)
			}
			return err
		},
	}
	c.Flags().StringVarP(&host, "hostnqn", "n", "", "NQN of the host (required)")
	c.Flags().StringVarP(&sub, "subsysnqn", "c", "", "NQN of the subsystem (required)")
	for _, flag := range []string{"hostnqn", "subsysnqn"} {
		_ = c.MarkFlagRequired(flag) // the flag exists
	}
	return c
}

// readKey returns the content of a file or standard input without the last newline, and its name.
func readKey(c *cobra.Command, args []string) (text, name string, err error) {
	in, name := c.InOrStdin(), "standard input"
	if len(args) > 0 {
		if auth.IsKey(args[0]) {
			return "", "", errors.New("everybody can see arguments: give a file, or the key on " +
				"standard input")
		}
		f, err := os.Open(args[0])
		if err != nil {
			return "", "", err
		}
		defer f.Close()
		in, name = f, args[0]
	}
	all, err := io.ReadAll(io.LimitReader(in, maxKeyFile))
	return strings.TrimRight(string(all), "\r\n"), name, err
}

func checkKey(c *cobra.Command, args []string) error {
	text, name, err := readKey(c, args)
	if err != nil {
		return err
	}
	if auth.IsTLSKey(text) {
		k, err := auth.ParseTLSKey(text)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		hash := "no hash"
		if h := k.Hash(); h != auth.NoHash {
			hash = "hash " + h.String()
		}
		_, err = fmt.Fprintf(c.OutOrStdout(), "valid for TLS: %d bytes, %s\n", k.Size(), hash)
		return err
	}
	k, err := auth.ParseKey(text)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	transformation := "no transformation"
	if h := k.Transformation(); h != auth.NoHash {
		transformation = "transformation " + h.String()
	}
	_, err = fmt.Fprintf(c.OutOrStdout(), "valid: %d bytes, %s\n", k.Size(), transformation)
	return err
}
