package tls

import (
	"bytes"
	"encoding/hex"
	"strings"
	"testing"

	"github.com/nvmf-target/nvmf-target/fabric/tcp/openssl"
	"github.com/nvmf-target/nvmf-target/internal/mem"
	"github.com/nvmf-target/nvmf-target/internal/sys"
	"github.com/nvmf-target/nvmf-target/internal/testing/testutil"
	"github.com/nvmf-target/nvmf-target/nvme/auth"
)

// TestRecordVectors uses records of the exchange that became the first one of RFC 8448
// (draft-ietf-tls-tls13-vectors-06, as in OpenSSL's test/tls13encryptiontest.c).
func TestRecordVectors(t *testing.T) {
	needTLS(t)
	data := testutil.Unhex(t, "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"+
		"202122232425262728292a2b2c2d2e2f3031")
	for _, tc := range []struct {
		key, iv string
		seq     uint64
		typ     byte
		content []byte
		sealed  string
	}{
		{
			"88b96ad686c84be55ace18a59cce5c87", "b99dc58cd5ff5ab082fdad19", 0,
			typeApplication, data,
			"8c3497da00ae023e53c01b4324b665404c1b49e78fe2bf4d17f6348ae8340551" +
				"e363a0cd05f2179c4fef5ad689b5cae0bae94adc63632e571fb79aa91544c6394d28a1",
		},
		{
			"a688ebb5ac826d6f42d45c0cc44b9b7d", "c1cad4425a438b5de714830a", 1,
			typeApplication, data,
			"f65f49fd2df6cd2347c3d30166e3cfddb6308a5906c076112c6a37ff1dbd406b" +
				"5813c0abd734883017a6b2833186b13c14da5d75f33d8760789994e27d82043ab88d65",
		},
		{
			"a688ebb5ac826d6f42d45c0cc44b9b7d", "c1cad4425a438b5de714830a", 2, typeAlert,
			[]byte{levelWarning, alertCloseNotify},
			"f8141ebdb5eda511e0bce639a56ff9ea825a21",
		},
	} {
		r := testutil.Value(mem.Map("test", 4096))(t)
		defer r.Unmap()
		b := r.Bytes()
		v := openssl.Vectors(b[:16])
		sys.SetIovec(&v[0], b[16:16+copy(b[16:], tc.content)])
		out := b[1024:]
		for _, seal := range []bool{true, false} {
			key, iv := testutil.Unhex(t, tc.key), testutil.Unhex(t, tc.iv)
			a := testutil.Value(openssl.NewAEAD(seal, key, iv))(t)
			defer a.Free()
			want := testutil.Unhex(t, tc.sealed)
			if seal {
				n, ok := a.Seal(out, tc.seq, v, 0, len(tc.content), maxContent, tc.typ)
				testutil.True(t, ok && bytes.Equal(out[recordHeader:n], want), "sealed: % x",
					out[:n])
				continue
			}
			record := append([]byte{typeApplication, 3, 3, 0, byte(len(want))}, want...)
			got := make([]byte, len(tc.content))
			typ, ok := a.Open(got, tc.seq, record, len(want)-tagSize)
			testutil.True(t, ok && typ == tc.typ && bytes.Equal(got, tc.content),
				"opened: % x, type %d, %t", got, typ, ok)
		}
	}
}

// TestTrafficKeys derives keys from a traffic secret (draft-ietf-tls-tls13-vectors-07, which became
// RFC 8448).
func TestTrafficKeys(t *testing.T) {
	k := newSchedule(auth.SHA256)
	secret := testutil.Unhex(t, "b67b7d690cc16c4e75e54213cb2d37b4e9c912bcded9105d42befd59d391ad38")
	got := k.expand(secret, "key", nil, 16)
	testutil.True(t, hex.EncodeToString(got) == "3fce516009c21727d0f2e4e86ee403bc", "key % x", got)
	got = k.expand(secret, "iv", nil, 12)
	testutil.True(t, hex.EncodeToString(got) == "5d313eb2671276ee13000b30", "IV % x", got)
}

// Messages of RFC 8448 section 3, "Simple 1-RTT Handshake".
const (
	rfcClientHello = "010000c00303cb34ecb1e78163ba1c38c6dacb196a6dffa21a8d9912ec18a2ef6283024d" +
		"ece7000006130113031302010000910000000b0009000006736572766572ff01000100000a001400120" +
		"01d0017001800190100010101020103010400230000003300260024001d002099381de560e4bd43d23d" +
		"8e435a7dbafeb3c06e51c13cae4d5413691e529aaf2c002b0003020304000d0020001e0403050306030" +
		"20308040805080604010501060102010402050206020202002d00020101001c00024001"
	rfcServerHello = "020000560303a6af06a4121860dc5e6e60249cd34c95930c8ac5cb1434dac155772ed3e2" +
		"692800130100002e00330024001d0020c9828876112095fe66762bdbf7c672e156d6cc253b833df1dd6" +
		"9b1b04e751f0f002b00020304"
	rfcEncryptedExtensions = "080000240022000a00140012001d00170018001901000101010201030104001c00" +
		"02400100000000"
	rfcCertificate = "0b0001b9000001b50001b0308201ac30820115a003020102020102300d06092a864886f70d" +
		"01010b0500300e310c300a06035504031303727361301e170d3136303733303031323335395a170d3236" +
		"303733303031323335395a300e310c300a0603550403130372736130819f300d06092a864886f70d0101" +
		"01050003818d0030818902818100b4bb498f8279303d980836399b36c6988c0c68de55e1bdb826d3901a" +
		"2461eafd2de49a91d015abbc9a95137ace6c1af19eaa6af98c7ced43120998e187a80ee0ccb0524b1b01" +
		"8c3e0b63264d449a6d38e22a5fda430846748030530ef0461c8ca9d9efbfae8ea6d1d03e2bd193eff0ab" +
		"9a8002c47428a6d35a8d88d79f7f1e3f0203010001a31a301830090603551d1304023000300b0603551d" +
		"0f0404030205a0300d06092a864886f70d01010b05000381810085aad2a0e5b9276b908c65f73a726717" +
		"0618a54c5f8a7b337d2df7a594365417f2eae8f8a58c8f8172f9319cf36b7fd6c55b80f21a0301515672" +
		"6096fd335e5e67f2dbf102702e608ccae6bec1fc63a42a99be5c3eb7107c3c54e9b9eb2bd5203b1c3b84" +
		"e0a8b2f759409ba3eac9d91d402dcc0cc8f8961229ac9187b42b4de10000"
	rfcCertificateVerify = "0f000084080400805a747c5d88fa9bd2e55ab085a61015b7211f824cd484145ab3ff" +
		"52f1fda8477b0b7abc90db78e2d33a5c141a078653fa6bef780c5ea248eeaaa785c4f394cab6d30bbe8d" +
		"4859ee511f602957b15411ac027671459e46445c9ea58c181e818e95b8c3fb0bf3278409d3be152a3da5" +
		"043e063dda65cdf5aea20d53dfacd42f74f3"

	rfcFinished = "9b9b141d906337fbd2cbdce71df4deda4ab42c309572cb7fffee5454b78f0718"
)

// TestRFC8448 derives the secrets and keys of RFC 8448 section 3 from its messages and its common
// secret.
func TestRFC8448(t *testing.T) {
	k := newSchedule(auth.SHA256)
	check := func(name string, got []byte, want string) {
		t.Helper()
		testutil.Equal(t, hex.EncodeToString(got), want, "%s: %x", name, got)
	}
	keys := func(name string, secret []byte, key, iv string) {
		t.Helper()
		check(name+", key", k.expand(secret, "key", nil, 16), key)
		check(name+", IV", k.expand(secret, "iv", nil, 12), iv)
	}
	early := k.extract(nil, nil)
	check("early", early, "33ad0a1c607ec03b09e6cd9893680ce210adf300aa1f2660e1b22e10f170f92a")
	derived := k.derive(early, "derived", nil)
	check("derived", derived, "6f2615a108c702c5678f54fc9dbab69716c076189c48250cebeac3576c3611ba")
	common := testutil.Unhex(t, "8bd4054fb55b9d63fdfbacf9f04b9f0d35e6d63f537563efd46272900f89492d")
	secret := k.extract(derived, common)
	check("handshake", secret, "1dc826e93606aa6fdc0aadc12f741b01046aa6b99f691ed221a9f0ca043fbeac")

	transcript := append(testutil.Unhex(t, rfcClientHello), testutil.Unhex(t, rfcServerHello)...)
	client := k.derive(secret, "c hs traffic", transcript)
	check("client", client, "b3eddb126e067f35a780b3abf45e2d8f3b1a950738f52e9600746a0e27a55a21")
	keys("client", client, "dbfaa693d1762c5b666af5d950258d01", "5bd3c71b836e0b76bb73265f")
	server := k.derive(secret, "s hs traffic", transcript)
	check("server", server, "b67b7d690cc16c4e75e54213cb2d37b4e9c912bcded9105d42befd59d391ad38")
	keys("server", server, "3fce516009c21727d0f2e4e86ee403bc", "5d313eb2671276ee13000b30")

	for _, m := range []string{rfcEncryptedExtensions, rfcCertificate, rfcCertificateVerify} {
		transcript = append(transcript, testutil.Unhex(t, m)...)
	}
	check("Finished of the server", k.finished(server, transcript), rfcFinished)
	transcript = append(transcript, testutil.Unhex(t, "14000020"+rfcFinished)...)
	check("Finished of the client", k.finished(client, transcript),
		"a8ec436d677634ae525ac1fcebe11a039ec17694fac6e98527b642f2edd5ce61")

	main := k.extract(k.derive(secret, "derived", nil), nil)
	check("main", main, "18df06843d13a08bf2a449844c5f8a478001bc4d4c627984d5a41da8d0402919")
	client = k.derive(main, "c ap traffic", transcript)
	check("client", client, "9e40646ce79a7f9dc05af8889bce6552875afa0b06df0087f792ebb7c17504a5")
	keys("client", client, "17422dda596ed5d9acd890e3c63f5051", "5b78923dee08579033e523d9")
	server = k.derive(main, "s ap traffic", transcript)
	check("server", server, "a11af9f05531f856ad47116b45a950328204b4f44bfb6b3a4b4f1f3fcb631643")
	keys("server", server, "9f02283b6c9c07efc26bb9f2ac92e356", "cf782b88dd83549aadf1e984")

	c := &Conn{}
	c.in = half{k: k, secret: bytes.Clone(client)}
	if err := c.in.setKey(auth.SHA256); err == nil { // with TLS built in
		// The first record of the client.
		record := testutil.Unhex(t, "1703030043a23f7054b62c94d0affafe8228ba55cbefacea42f914aa"+
			"66bcab3f2b9819"+
			"a8a5b46b395bd54a9a20441e2b62974e1f5a6292a2977014bd1e3deae63aeebb21694915e4")
		data := make([]byte, 50)
		typ, ok := c.in.aead.Open(data, 0, record, len(record)-recordHeader-tagSize)
		testutil.True(t, ok && typ == typeApplication && data[0] == 0 && data[49] == 49,
			"the data of the client: %x, type %d, %v", data, typ, ok)
		c.in.aead.Free()
	}
}

// TestRFC8448Binder uses the ClientHello of RFC 8448 section 4, "Resumed 0-RTT Handshake". Its PSK
// comes from a ticket, so its binder has another label than that of an external PSK (RFC 8446
// section 7.1).
func TestRFC8448Binder(t *testing.T) {
	message := testutil.Unhex(t, "01"+
		"0001fc03031bc3ceb6bbe39cff938355b5a50adb6db21b7a6af649d7b4bc419d7876487d9500000613"+
		"0113031302010001cd0000000b0009000006736572766572ff01000100000a00140012001d0017001800"+
		"1901000101010201030104003300260024001d0020e4ffb68ac05f8d96c99da26698346c6be16482badd"+
		"dafe051a66b4f18d668f0b002a0000002b0003020304000d0020001e0403050306030203080408050806"+
		"04010501060102010402050206020202002d00020101001c0002400100150057"+
		strings.Repeat("00", 87)+ // padding
		"002900dd00b800b22c035d829359ee5ff7af4ec900000000262a6494dc486d2c8a34cb33fa90bf1b0070"+
		"ad3c498883c9367c09a2be785abc55cd226097a3a982117283f82a03a143efd3ff5dd36d64e861be7fd6"+
		"1d2827db279cce145077d454a3664d4e6da4d29ee03725a6a4dafcd0fc67d2aea70529513e3da2677fa5"+
		"906c5b3f7d8f92f228bda40dda721470f9fbf297b5aea617646fac5c03272e970727c621a79141ef5f7d"+
		"e6505e5bfbc388e93343694093934ae4d357fad6aacb0021203add4fb2d8fdf822a0ca3cf7678ef5e88d"+
		"ae990141c5924d57bb6fa31b9e5f9d")
	h, err := parseHello(plainRecord(typeHandshake, message))
	testutil.MustTrue(t, err == nil && len(h.psks) == 1 && h.bound == 477 &&
		len(h.psks[0].identity) == 178, "%v, %d PSKs, bound to %d bytes", err, len(h.psks), h.bound)
	k := newSchedule(auth.SHA256)
	psk := testutil.Unhex(t, "4ecd0eb6ec3b4d87f5d6028f922ca4c5851a277fd41311c9e62d2c9492e1c4f3")
	early := k.extract(nil, psk)
	testutil.Equal(t, hex.EncodeToString(early),
		"9b2188e9b2fc6d64d71dc329900e20bb41915000f678aa839cbb797cb7d8332c", "early secret")
	key := k.derive(early, "res binder", nil)
	testutil.Equal(t, hex.EncodeToString(key),
		"69fe131a3bbad5d63c64eebcc30e395b9d8107726a13d074e389dbc8a4e47256", "key of the binder")
	testutil.EqualSlices(t, k.finished(key, h.message[:h.bound]), h.psks[0].binder, "binder")
	testutil.True(t, !h.bindsTo((auth.TLSPSK{Hash: auth.SHA256, Secret: psk}), h.psks[0].binder),
		"the binder of a ticket is taken for that of an external PSK")
}

// TestTiming: the time to check a binder does not depend on the position of the difference.
func TestTiming(t *testing.T) {
	psk := testPSKs(t, auth.SHA384)[0]
	c := newRawClient(psk)
	h := testutil.Value(parseHello(c.send(c.hello())))(t)
	testutil.MustTrue(t, h.bindsTo(psk, h.psks[0].binder), "the right binder is refused")
	var binders [2][]byte
	for i, at := range []int{0, 47} {
		binders[i] = bytes.Clone(h.psks[0].binder)
		binders[i][at] ^= 1
	}
	binder := make([]byte, 48)
	testutil.SameTime(t, 100_000, func(class int) func() {
		copy(binder, binders[class])
		return func() { testutil.True(t, !h.bindsTo(psk, binder), "a wrong binder is taken") }
	})
}

func TestMain(m *testing.M) { testutil.Main(m) }
