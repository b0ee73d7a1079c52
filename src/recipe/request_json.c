/* What the engine is told about a request, as one JSON object; the options that a tokenizer decides; what bindings
 * need. */
#include <stdlib.h>

#include <ds/image.h>
#include <ds/recipe.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"

static void put_str(ds_buf *b, const char *p, size_t n)
{
    ds_json_write_str(b, p, n, DS_JSON_COMPACT);
}

static void put_effort(ds_buf *b, const ds_request_info_data *i)
{
    static const char *const names[] = { "none", "low", "high", "xhigh", "max" };

    if (i->effort == DS_EFFORT_NUMBER)
        ds_buf_printf(b, "%u", i->effort_number);
    else
        ds_buf_printf(b, "\"%s\"", names[i->effort]);
}

static void put_tools(ds_buf *b, const ds_request_info_data *i, bool strict_only)
{
    bool first = true;

    ds_buf_putc(b, '[');
    for (uint32_t k = 0; k < i->n_tools; k++) {
        const ds_tool *t = &i->tools[k];

        if (!t->shown || (strict_only && !t->strict))
            continue;
        if (!first)
            ds_buf_putc(b, ',');
        first = false;
        put_str(b, t->name.p, t->name.n);
    }
    ds_buf_putc(b, ']');
}

/* What a constrained decoder is asked to enforce. */
static void put_constraint(ds_buf *b, const ds_request_info_data *i)
{
    bool strict = false;

    for (uint32_t k = 0; k < i->n_tools; k++)
        strict = strict || (i->tools[k].shown && i->tools[k].strict);
    switch (i->constraint.kind) {
    case DS_CONSTRAINT_JSON_OBJECT:
        ds_buf_puts(b, "{\"type\":\"json_object\"");
        break;
    case DS_CONSTRAINT_JSON_SCHEMA:
        ds_buf_printf(b, "{\"type\":\"json_schema\",\"strict\":%s,\"schema\":", i->constraint.strict ? "true" : "false");
        ds_buf_put(b, i->constraint.text.p, i->constraint.text.n);
        break;
    case DS_CONSTRAINT_REGEX:
        ds_buf_puts(b, "{\"type\":\"regex\",\"regex\":");
        put_str(b, i->constraint.text.p, i->constraint.text.n);
        break;
    case DS_CONSTRAINT_EBNF:
        ds_buf_puts(b, "{\"type\":\"ebnf\",\"grammar\":");
        put_str(b, i->constraint.text.p, i->constraint.text.n);
        break;
    case DS_CONSTRAINT_CHOICE:
        ds_buf_puts(b, "{\"type\":\"choice\",\"choice\":");
        ds_buf_put(b, i->constraint.text.p, i->constraint.text.n);
        break;
    case DS_CONSTRAINT_LARK:
        ds_buf_puts(b, "{\"type\":\"lark\",\"grammar\":");
        put_str(b, i->constraint.text.p, i->constraint.text.n);
        break;
    default:
        if (i->tool_choice != DS_CHOICE_REQUIRED && !strict) {
            ds_buf_puts(b, "null");
            return;
        }
        ds_buf_puts(b, "{\"type\":\"tool_call\"");
        break;
    }
    if (i->tool_choice == DS_CHOICE_REQUIRED) {
        ds_buf_puts(b, ",\"required\":true,\"tools\":");
        put_tools(b, i, false);
    }
    if (strict) {
        ds_buf_puts(b, ",\"strict_tools\":");
        put_tools(b, i, true);
    }
    ds_buf_putc(b, '}');
}

static void put_images(ds_buf *b, const ds_request_info_data *i)
{
    ds_buf_printf(b, ",\"images\":%u,\"image_records\":[", i->n_images);
    for (uint32_t k = 0; k < i->n_images; k++) {
        const ds_image *im = &i->images[k];

        ds_buf_puts(b, k ? "," : "");
        if (im->tokens)
            ds_buf_printf(b, "{\"width\":%u,\"height\":%u,\"fitted\":[%u,%u],\"rows\":%u,\"cols\":%u,\"tokens\":%u}", im->width, im->height,
                          im->fitted_w, im->fitted_h, im->rows, im->cols, im->tokens);
        else /* not here yet: its size is not known */
            ds_buf_puts(b, "{\"width\":null,\"height\":null,\"fitted\":null,\"rows\":null,\"cols\":null,\"tokens\":null}");
    }
    ds_buf_putc(b, ']');
}

/* given: a prompt that came as ids, or NULL; e: NULL is fine then. */
static ds_rc put_ids(ds_buf *b, ds_request *r, const ds_token *given, size_t n, ds_encoder *e, const ds_run *runs, size_t n_runs,
                     ds_api_error *why, ds_err *err)
{
    ds_ids ids = { 0 };
    ds_rc rc = DS_OK;

    if (given && e) {
        uint32_t size = ds_tokenizer_size(ds_encoder_tokenizer(e));

        for (size_t k = 0; k < n && rc == DS_OK; k++)
            if ((uint32_t)given[k] >= size)
                rc =
                    ds_api_fail(why, 400, NULL, NULL, "prompt", "prompt: token id %d lies outside of the vocabulary of %u", given[k], size);
    } else if (!given) {
        rc = ds_encoder_runs(e, runs, n_runs, &ids, err);
        given = ids.p;
        n = ids.n;
    }
    if (rc == DS_OK)
        rc = ds_request_check_length(r, n + ds_request_image_extra_tokens(r), NULL, why);
    if (rc == DS_OK) {
        ds_buf_puts(b, ",\"ids\":[");
        for (size_t k = 0; k < n; k++)
            ds_buf_printf(b, k ? ",%u" : "%u", given[k]);
        ds_buf_printf(b, "],\"prompt_tokens\":%zu", n + ds_request_image_extra_tokens(r));
    }
    ds_ids_free(&ids);
    return rc;
}

static void put_runs(ds_buf *b, const ds_run *runs, size_t n)
{
    ds_buf prompt = { 0 };

    for (size_t k = 0; k < n; k++)
        ds_buf_put(&prompt, runs[k].p, runs[k].n);
    b->oom = b->oom || prompt.oom;
    ds_buf_puts(b, "{\"prompt\":");
    put_str(b, ds_buf_str(&prompt), prompt.len);
    ds_buf_free(&prompt);
    ds_buf_puts(b, ",\"runs\":[");
    for (size_t k = 0; k < n; k++) {
        ds_buf_puts(b, k ? ",{\"" : "{\"");
        ds_buf_puts(b, runs[k].control ? "control\":" : "text\":");
        put_str(b, runs[k].p, runs[k].n);
        ds_buf_putc(b, '}');
    }
    ds_buf_putc(b, ']');
}

ds_rc ds_request_json(ds_request *r, uint32_t prompt, ds_encoder *e, char **json, size_t *n, ds_api_error *why, ds_err *err)
{
    const ds_request_info_data *i = ds_request_info(r);
    const ds_token *given;
    const ds_run *runs;
    size_t n_runs, n_given;
    ds_buf b = { 0 };
    ds_rc rc = ds_request_render(r, prompt, &runs, &n_runs, err);

    *json = NULL;
    *n = 0;
    if (rc != DS_OK)
        return rc;
    ds_request_prompt_ids(r, prompt, &given, &n_given);
    put_runs(&b, runs, given ? 0 : n_runs); /* ids are used as they are: no begin of sentence, no text */
    if (e || given)
        rc = put_ids(&b, r, given, n_given, e, runs, n_runs, why, err);
    put_images(&b, i);
    ds_buf_printf(&b, ",\"thinking\":%s,\"effort\":", i->thinking ? "true" : "false");
    put_effort(&b, i);
    ds_buf_puts(&b, ",\"stop\":[");
    for (uint32_t k = 0; k < i->n_stop; k++) {
        ds_buf_puts(&b, k ? "," : "");
        put_str(&b, i->stop[k].p, i->stop[k].n);
    }
    ds_buf_printf(&b, "],\"max_tokens\":%u,\"constraint\":", i->max_tokens);
    put_constraint(&b, i);
    ds_buf_puts(&b, "}");
    if (rc == DS_OK && b.oom)
        rc = ds_fail(err, DS_E_NOMEM, "prompt as JSON: out of memory");
    if (rc != DS_OK) {
        ds_buf_free(&b);
        return rc;
    }
    *json = b.p;
    *n = b.len;
    return DS_OK;
}

void ds_recipe_free(void *p)
{
    free(p);
}

void ds_recipe_opts_fit(ds_recipe_opts *o, const ds_tokenizer *t)
{
    static const char *const marks[] = { "<｜/polygon｜>", "<｜polygon｜>", "<｜/point｜>", "<｜point｜>",
                                         "<｜/box｜>",     "<｜box｜>",     "<｜/ref｜>",   "<｜ref｜>" };

    if (ds_tokenizer_control(t, o->image_token) == DS_TOKEN_NONE && ds_tokenizer_control(t, "<｜image｜>") != DS_TOKEN_NONE)
        o->image_token = "<｜image｜>";
    o->no_image_token = ds_tokenizer_control(t, o->image_token) == DS_TOKEN_NONE;
    for (size_t i = 0; i < sizeof marks / sizeof *marks; i++)
        if (ds_tokenizer_control(t, marks[i]) == DS_TOKEN_NONE)
            o->grounding_tokens = false;
}

ds_rc ds_recipe_opts_create(ds_recipe_opts **out, ds_encoding encoding, ds_err *err)
{
    *out = malloc(sizeof **out);
    if (!*out)
        return ds_fail(err, DS_E_NOMEM, "recipe options: out of memory");
    ds_recipe_opts_init(*out);
    (*out)->encoding = encoding;
    return DS_OK;
}

const size_t *ds_recipe_abi(size_t *n)
{
    static const size_t sizes[] = {
        sizeof(ds_err),
        sizeof(ds_api_error),
        sizeof(ds_request_parse_args),
        sizeof(ds_request_io),
        sizeof(ds_response_store),
        sizeof(ds_stream_opts),
        sizeof(ds_stream_usage),
        sizeof(ds_top_logprob),
        sizeof(ds_token_logprob),
        sizeof(ds_run),
        sizeof(ds_ids),
        sizeof(ds_encoder_opts),
        sizeof(ds_decoder),
        sizeof(ds_image),
        sizeof(ds_image_rule),
        sizeof(ds_image_limits),
        sizeof(ds_pixels),
        sizeof(ds_prepare_opts),
        sizeof(ds_picture),
        sizeof(ds_fetch_opts),
        sizeof(ds_fetch_item),
        sizeof(ds_images_opts),
    };

    *n = sizeof sizes / sizeof *sizes;
    return sizes;
}
