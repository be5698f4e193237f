#include <openssl/ssl.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

// maxTLSIdentity of nvme/auth: "NVMe1R02", three spaces, two NQNs of 223 bytes, and the base64 of 48 bytes
// (TCP section 3.6.1.3).
#define MAX_IDENTITY (8 + 3 + 2 * 223 + 64)
#define MAX_SECRET 48

// A handshake with an external PSK. It is in C memory, because it is passed to callbacks of OpenSSL.
struct handshake {
	SSL *ssl;
	BIO *in, *out;
	SSL_SESSION *session; // of the PSK, NULL without
	unsigned char identity[MAX_IDENTITY];
	size_t identity_len;
	unsigned char secrets[2][MAX_SECRET]; // traffic secrets of client and server
	size_t secret_len;
};

struct handshake *hs_new(int server, int sha384, const unsigned char *identity,
			 size_t identity_len, const unsigned char *psk, size_t psk_len);
int hs_step(struct handshake *h, const unsigned char *in, size_t n);
size_t hs_output(struct handshake *h, unsigned char *out, size_t room);
size_t hs_left(struct handshake *h, unsigned char *out, size_t room);
size_t hs_fragment(struct handshake *h);
const char *hs_error(unsigned long *code);
void hs_free(struct handshake *h);

EVP_CIPHER_CTX *aead_new(int seal, const unsigned char *key, size_t n);
long aead_seal(EVP_CIPHER_CTX *c, const unsigned char *iv, uint64_t seq, const struct iovec *v,
	       size_t skip, size_t n, size_t most, unsigned char type, unsigned char *out);
int aead_open(EVP_CIPHER_CTX *c, const unsigned char *iv, uint64_t seq, const unsigned char *record,
	      size_t n, unsigned char *out, unsigned char *last);
