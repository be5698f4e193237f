//go:build cgo

#include "openssl.h"

#include <openssl/crypto.h>
#include <openssl/err.h>
#include <string.h>

enum { NONCE = 12, TAG = 16, HEADER = 5 };

static int find_psk(SSL *ssl, const unsigned char *id, size_t n, SSL_SESSION **s)
{
	struct handshake *h = SSL_get_app_data(ssl);

	*s = NULL;
	if (h->session != NULL && n == h->identity_len && memcmp(id, h->identity, n) == 0 &&
	    SSL_SESSION_up_ref(h->session))
		*s = h->session;
	return 1;
}

static int use_psk(SSL *ssl, const EVP_MD *md, const unsigned char **id, size_t *n, SSL_SESSION **s)
{
	struct handshake *h = SSL_get_app_data(ssl);
	const SSL_CIPHER *c = SSL_SESSION_get0_cipher(h->session);

	*s = NULL;
	if ((md == NULL || EVP_MD_get_type(md) == EVP_MD_get_type(SSL_CIPHER_get_handshake_digest(c))) &&
	    SSL_SESSION_up_ref(h->session)) {
		*id = h->identity;
		*n = h->identity_len;
		*s = h->session;
	}
	return 1;
}

static int digit(char c) { return c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10; }

// A line is "LABEL client_random secret", the last two in hexadecimal.
static void keylog(const SSL *ssl, const char *line)
{
	static const char *const labels[] = { "CLIENT_TRAFFIC_SECRET_0 ", "SERVER_TRAFFIC_SECRET_0 " };
	struct handshake *h = SSL_get_app_data(ssl);
	const char *p = strrchr(line, ' ');

	for (int i = 0; p != NULL && i < 2; i++) {
		if (strncmp(line, labels[i], strlen(labels[i])) != 0)
			continue;
		size_t n = strlen(p + 1) / 2;
		for (size_t j = 0; j < n && j < MAX_SECRET; j++)
			h->secrets[i][j] = digit(p[1 + 2 * j]) << 4 | digit(p[2 + 2 * j]);
		h->secret_len = n <= MAX_SECRET ? n : 0;
	}
}

// TLS 1.3 with a PSK and (EC)DHE only: psk_ke needs SSL_OP_ALLOW_NO_DHE_KEX, and there is no
// certificate. Only the cheap groups are offered.
static SSL_CTX *new_ctx(int server)
{
	SSL_CTX *ctx;

	OPENSSL_init_ssl(OPENSSL_INIT_NO_ATEXIT, NULL);
	ctx = SSL_CTX_new(server ? TLS_server_method() : TLS_client_method());
	if (ctx == NULL)
		return NULL;
	if (!SSL_CTX_set_min_proto_version(ctx, TLS1_3_VERSION) ||
	    !SSL_CTX_set_max_proto_version(ctx, TLS1_3_VERSION) ||
	    !SSL_CTX_set1_groups_list(ctx, "X25519:P-256:P-384:ffdhe2048:ffdhe3072") ||
	    !SSL_CTX_set_num_tickets(ctx, 0) || !SSL_CTX_set_max_early_data(ctx, 0)) {
		SSL_CTX_free(ctx);
		return NULL;
	}
	SSL_CTX_set_session_cache_mode(ctx, SSL_SESS_CACHE_OFF);
	SSL_CTX_set_options(ctx, SSL_OP_NO_TICKET);
	SSL_CTX_set_verify(ctx, SSL_VERIFY_NONE, NULL); // the PSK is the proof, see hs_step
	SSL_CTX_set_keylog_callback(ctx, keylog);
	if (server)
		SSL_CTX_set_psk_find_session_callback(ctx, find_psk);
	else
		SSL_CTX_set_psk_use_session_callback(ctx, use_psk);
	return ctx;
}

static SSL_CTX *contexts[2];
static CRYPTO_ONCE once = CRYPTO_ONCE_STATIC_INIT;
static void make_contexts(void)
{
	for (int i = 0; i < 2; i++)
		contexts[i] = new_ctx(i);
}

static int set_psk(struct handshake *h, int sha384, const unsigned char *psk, size_t n)
{
	static const unsigned char ids[2][2] = { { 0x13, 0x01 }, { 0x13, 0x02 } };
	const SSL_CIPHER *c = SSL_CIPHER_find(h->ssl, ids[sha384]);

	if (!SSL_set_ciphersuites(h->ssl, sha384 ? "TLS_AES_256_GCM_SHA384" : "TLS_AES_128_GCM_SHA256"))
		return 0;
	return c != NULL && (h->session = SSL_SESSION_new()) != NULL &&
	       SSL_SESSION_set1_master_key(h->session, psk, n) &&
	       SSL_SESSION_set_cipher(h->session, c) &&
	       SSL_SESSION_set_protocol_version(h->session, TLS1_3_VERSION);
}

struct handshake *hs_new(int server, int sha384, const unsigned char *identity,
			 size_t identity_len, const unsigned char *psk, size_t psk_len)
{
	struct handshake *h;

	ERR_clear_error();
	if (!CRYPTO_THREAD_run_once(&once, make_contexts) || contexts[server] == NULL ||
	    identity_len > MAX_IDENTITY || (h = OPENSSL_zalloc(sizeof(*h))) == NULL)
		return NULL;
	memcpy(h->identity, identity, identity_len);
	h->identity_len = identity_len;
	h->ssl = SSL_new(contexts[server]);
	h->in = BIO_new(BIO_s_mem());
	h->out = BIO_new(BIO_s_mem());
	if (h->ssl == NULL || h->in == NULL || h->out == NULL) {
		BIO_free(h->in);
		BIO_free(h->out);
		goto fail;
	}
	SSL_set_bio(h->ssl, h->in, h->out);
	SSL_set_app_data(h->ssl, h);
	if (psk_len > 0 && !set_psk(h, sha384, psk, psk_len))
		goto fail;
	if (server)
		SSL_set_accept_state(h->ssl);
	else
		SSL_set_connect_state(h->ssl);
	return h;
fail:
	h->in = h->out = NULL;
	hs_free(h);
	return NULL;
}

// Returns 1 if complete, 0 if more input is needed, -1 on failure. Any result may have output.
int hs_step(struct handshake *h, const unsigned char *in, size_t n)
{
	int r;

	ERR_clear_error();
	if (n > 0 && BIO_write(h->in, in, n) != (int)n)
		return -1;
	r = SSL_do_handshake(h->ssl);
	if (r == 1)
		return SSL_session_reused(h->ssl) && h->secret_len > 0 ? 1 : -1;
	return SSL_get_error(h->ssl, r) == SSL_ERROR_WANT_READ ? 0 : -1;
}

size_t hs_output(struct handshake *h, unsigned char *out, size_t room)
{
	int n = BIO_read(h->out, out, room);

	return n > 0 ? n : 0;
}

size_t hs_left(struct handshake *h, unsigned char *out, size_t room)
{
	int n = BIO_read(h->in, out, room);

	return n > 0 ? n : 0;
}

// Returns the longest fragment that the peer accepts (RFC 6066 section 4).
size_t hs_fragment(struct handshake *h)
{
	unsigned code = SSL_SESSION_get_max_fragment_length(SSL_get0_session(h->ssl));

	return code >= 1 && code <= 4 ? (size_t)256 << code : 1 << 14;
}

const char *hs_error(unsigned long *code)
{
	*code = ERR_get_error();
	return *code ? ERR_reason_error_string(*code) : NULL;
}

void hs_free(struct handshake *h)
{
	if (h == NULL)
		return;
	SSL_free(h->ssl);
	SSL_SESSION_free(h->session);
	OPENSSL_clear_free(h, sizeof(*h));
}

EVP_CIPHER_CTX *aead_new(int seal, const unsigned char *key, size_t n)
{
	const EVP_CIPHER *cipher = n == 32 ? EVP_aes_256_gcm() : EVP_aes_128_gcm();
	EVP_CIPHER_CTX *c = EVP_CIPHER_CTX_new();

	if (c != NULL && !EVP_CipherInit_ex(c, cipher, NULL, key, NULL, seal)) {
		EVP_CIPHER_CTX_free(c);
		return NULL;
	}
	return c;
}

static int start(EVP_CIPHER_CTX *c, const unsigned char *iv, uint64_t seq,
		 const unsigned char *header)
{
	unsigned char nonce[NONCE];
	int n;

	memcpy(nonce, iv, NONCE);
	for (int i = 0; i < 8; i++)
		nonce[NONCE - 1 - i] ^= seq >> (8 * i);
	return EVP_CipherInit_ex(c, NULL, NULL, NULL, nonce, -1) &&
	       EVP_CipherUpdate(c, NULL, &n, header, HEADER);
}

// Seals n bytes of v, without the first skip bytes, as records of at most most bytes (RFC 8446
// section 5.2), at least one.
long aead_seal(EVP_CIPHER_CTX *c, const unsigned char *iv, uint64_t seq, const struct iovec *v,
	       size_t skip, size_t n, size_t most, unsigned char type, unsigned char *out)
{
	unsigned char *p = out;
	int done;

	for (; skip > 0 && skip >= v->iov_len; v++)
		skip -= v->iov_len;
	do {
		size_t left = n < most ? n : most, len = left + 1 + TAG;
		unsigned char *header = p;

		n -= left;
		p[0] = 23;
		p[1] = p[2] = 3;
		p[3] = len >> 8;
		p[4] = len;
		p += HEADER;
		if (!start(c, iv, seq++, header))
			return -1;
		while (left > 0) {
			size_t piece = v->iov_len - skip;

			if (piece > left)
				piece = left;
			if (piece > 0 &&
			    !EVP_CipherUpdate(c, p, &done, (unsigned char *)v->iov_base + skip, piece))
				return -1;
			p += piece;
			left -= piece;
			skip += piece;
			if (skip == v->iov_len) {
				skip = 0;
				v++;
			}
		}
		if (!EVP_CipherUpdate(c, p, &done, &type, 1) || !EVP_CipherFinal_ex(c, p + 1, &done) ||
		    !EVP_CIPHER_CTX_ctrl(c, EVP_CTRL_AEAD_GET_TAG, TAG, p + 1))
			return -1;
		p += 1 + TAG;
	} while (n > 0);
	return p - out;
}

// Opens a record with n bytes of inner plaintext, at least 1: all but the last byte go to out.
int aead_open(EVP_CIPHER_CTX *c, const unsigned char *iv, uint64_t seq, const unsigned char *record,
	      size_t n, unsigned char *out, unsigned char *last)
{
	const unsigned char *in = record + HEADER;
	unsigned char tag[TAG], rest[TAG];
	int done;

	memcpy(tag, in + n, TAG);
	return start(c, iv, seq, record) &&
	       (n == 1 || EVP_CipherUpdate(c, out, &done, in, n - 1)) &&
	       EVP_CipherUpdate(c, last, &done, in + n - 1, 1) &&
	       EVP_CIPHER_CTX_ctrl(c, EVP_CTRL_AEAD_SET_TAG, TAG, tag) &&
	       EVP_CipherFinal_ex(c, rest, &done) > 0;
}
