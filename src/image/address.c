/* Which addresses belong to the public internet. What isn't known to is not: private, loopback, link-local, carrier
 * and test networks, multicast, and every IPv6 form that carries an IPv4 address of those. */
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>

#include "image/image_internal.h"

typedef struct {
    uint32_t net;
    int bits;
} range4;

static bool public4(uint32_t a)
{
    static const range4 special[] = {
        { 0x00000000, 8 },  /* this network */
        { 0x0A000000, 8 },  /* private */
        { 0x64400000, 10 }, /* carriers' own */
        { 0x7F000000, 8 },  /* loopback */
        { 0xA9FE0000, 16 }, /* link-local, cloud metadata */
        { 0xAC100000, 12 }, /* private */
        { 0xC0000000, 24 }, /* protocol assignments */
        { 0xC0000200, 24 }, /* documentation */
        { 0xC0586300, 24 }, /* 6to4 relays */
        { 0xC0A80000, 16 }, /* private */
        { 0xC6120000, 15 }, /* benchmarks */
        { 0xC6336400, 24 }, /* documentation */
        { 0xCB007100, 24 }, /* documentation */
        { 0xE0000000, 3 },  /* multicast, reserved, broadcast */
    };

    for (size_t i = 0; i < sizeof special / sizeof *special; i++)
        if ((a ^ special[i].net) >> (32 - special[i].bits) == 0)
            return false;
    return true;
}

static uint32_t be32(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static bool public6(const uint8_t *a)
{
    static const uint8_t mapped[12] = { [10] = 0xFF, 0xFF }, nat64[12] = { 0x00, 0x64, 0xFF, 0x9B };
    uint32_t top = be32(a);

    if (memcmp(a, mapped, 12) == 0 || memcmp(a, nat64, 12) == 0)
        return public4(be32(a + 12));
    if (top >> 29 != 1) /* only 2000::/3 is given out */
        return false;
    if (top >> 16 == 0x2002) /* 6to4 */
        return public4(be32(a + 2));
    if (top >> 9 == 0x20010000 >> 9) /* 2001::/23: Teredo and other special uses */
        return false;
    if (top == 0x20010DB8 || top >> 12 == 0x3FFF0000 >> 12) /* documentation */
        return false;
    return true;
}

bool ds_address_public(const void *sockaddr, size_t n)
{
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
    sa_family_t family;

    if (n < sizeof v4)
        return false;
    memcpy(&family, (const char *)sockaddr + offsetof(struct sockaddr, sa_family), sizeof family);
    if (family == AF_INET) {
        memcpy(&v4, sockaddr, sizeof v4);
        return public4(ntohl(v4.sin_addr.s_addr));
    }
    if (family == AF_INET6 && n >= sizeof v6) {
        memcpy(&v6, sockaddr, sizeof v6);
        return public6(v6.sin6_addr.s6_addr);
    }
    return false;
}
