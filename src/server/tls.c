/* Certificate and key looked at before the HTTP library gets them: it only says that it doesn't like them. */
#include <string.h>

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include "base/file.h"
#include "server/server_internal.h"

/* Asked for a password by the reader of an encrypted key: there is none. */
static int no_password(char *buf, int size, int writing, void *asked)
{
    (void)buf;
    (void)size;
    (void)writing;
    *(bool *)asked = true;
    return -1;
}

ds_rc ds_tls_check(const char *cert_path, const char *cert, const char *key_path, const char *key, ds_err *err)
{
    BIO *in_cert = BIO_new_mem_buf(cert, (int)strlen(cert)), *in_key = BIO_new_mem_buf(key, (int)strlen(key));
    X509 *x = in_cert ? PEM_read_bio_X509(in_cert, NULL, NULL, NULL) : NULL;
    bool encrypted = false;
    EVP_PKEY *k = in_key ? PEM_read_bio_PrivateKey(in_key, NULL, no_password, &encrypted) : NULL;
    char label[220], other[220];
    ds_rc rc = DS_OK;

    ds_file_label(label, sizeof label, x ? key_path : cert_path);
    if (!in_cert || !in_key)
        rc = ds_fail(err, DS_E_NOMEM, "out of memory");
    else if (!x)
        rc = ds_fail(err, DS_E_FORMAT, "--tls-cert %s: holds no certificate in PEM form", label);
    else if (encrypted)
        rc = ds_fail(err, DS_E_FORMAT, "--tls-key %s: is encrypted; a key without a password is needed", label);
    else if (!k)
        rc = ds_fail(err, DS_E_FORMAT, "--tls-key %s: holds no private key in PEM form", label);
    else if (X509_check_private_key(x, k) != 1)
        rc = ds_fail(err, DS_E_FORMAT, "--tls-key %s: isn't the key of the certificate in %s", label,
                     ds_file_label(other, sizeof other, cert_path));
    X509_free(x);
    EVP_PKEY_free(k);
    BIO_free(in_cert);
    BIO_free(in_key);
    ERR_clear_error();
    return rc;
}
