/* ---------------------------------------------------------------------- matrices */

typedef struct {
    const real *value; /* [1 or FIELDS][ENTRIES]; NULL where there is none */
    int own;           /* every field has values of its own */
} matrix;

typedef struct {
    matrix explicit_part, source, full, gather[RATES + 1];
    const real *sums; /* [FIELDS][UNKNOWNS] */
    const real (*coefficient)[2];
    int count;
} stage;

typedef struct {
    matrix mass, difference;
    const real (*coefficient)[2];
    int count;
} change;

@stages@

static const real *values(matrix A, int f)
{
    return A.own ? A.value + (size_t)f * ENTRIES : A.value;
}

/* y += scale A (x - shift) */
static void add_product(const real *a, const real *x, real shift, real scale, real *y)
{
    for (int i = 0; i < UNKNOWNS; i++) {
        real s = 0;
        for (int p = row_start[i]; p < row_start[i + 1]; p++)
            s += a[p] * (x[column[p]] - shift);
        y[i] += scale * s;
    }
}

/* ---------------------------------------------------------------------- solver */

static int is_fixed(const short *by, int i)
{
    return by != NULL && by[i] >= 0;
}

/* An entry of the matrix whose rows and columns at fixed unknowns are those of the identity. */
static double eliminated(const real *a, const short *by, int i, int p)
{
    if (is_fixed(by, i) || is_fixed(by, column[p]))
        return i == column[p] ? 1.0 : 0.0;
    return (double)a[p];
}

static void *fresh(size_t count, size_t size)
{
    return calloc(count ? count : 1, size);
}

#if DIRECT
/* A = L D U by rows, in the order in which the unknowns are numbered, which keeps the factors sparse. U^T has the pattern of L. */
typedef struct {
    real *lower, *upper, *inverse; /* upper == lower where A is symmetric */
} solver;

typedef struct {
    int *start, *row; /* of the columns of L */
} fill;

/* Elimination tree and number of entries of each column. */
static int fill_make(fill *s)
{
    int *parent = fresh(UNKNOWNS, sizeof *parent), *flag = fresh(UNKNOWNS, sizeof *flag), *count = fresh(UNKNOWNS, sizeof *count);
    int bad = parent == NULL || flag == NULL || count == NULL;
    s->start = fresh(UNKNOWNS + 1, sizeof *s->start);
    s->row = NULL;
    bad = bad || s->start == NULL;
    for (int k = 0; !bad && k < UNKNOWNS; k++) {
        parent[k] = -1;
        flag[k] = k;
        for (int p = row_start[k]; p < row_start[k + 1] && column[p] < k; p++)
            for (int i = column[p]; flag[i] != k; i = parent[i]) {
                if (parent[i] == -1)
                    parent[i] = k;
                count[i]++;
                flag[i] = k;
            }
    }
    if (!bad) {
        for (int k = 0; k < UNKNOWNS; k++)
            s->start[k + 1] = s->start[k] + count[k];
        s->row = fresh((size_t)s->start[UNKNOWNS], sizeof *s->row);
    }
    free(parent);
    free(flag);
    free(count);
    return bad || s->row == NULL;
}

/* Where (j, i) stands, for an entry (i, j). */
static int mirrored(int i, int j)
{
    int low = row_start[j], high = row_start[j + 1] - 1;
    while (low < high) {
        int middle = (low + high) / 2;
        if (column[middle] < i)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Row by row: row k of L from its entries left of the diagonal, column k of U from those above it. */
static int factorise(const fill *s, const real *a, const short *by, double *lower, double *upper, double *pivot)
{
    size_t n = UNKNOWNS;
    int *flag = fresh(n, sizeof *flag), *pattern = fresh(n, sizeof *pattern), *count = fresh(n, sizeof *count);
    int *parent = fresh(n, sizeof *parent);
    double *y = fresh(n, sizeof *y), *z = fresh(n, sizeof *z);
    int bad = flag == NULL || pattern == NULL || count == NULL || parent == NULL || y == NULL || z == NULL;
    for (int k = 0; !bad && k < UNKNOWNS; k++) {
        int top = UNKNOWNS;
        parent[k] = -1;
        flag[k] = k;
        for (int p = row_start[k]; p < row_start[k + 1] && column[p] <= k; p++) {
            int i = column[p], length = 0;
            z[i] = eliminated(a, by, k, p);
            y[i] = SYMMETRIC ? z[i] : eliminated(a, by, i, mirrored(k, i));
            for (; flag[i] != k; i = parent[i]) {
                if (parent[i] == -1)
                    parent[i] = k;
                pattern[length++] = i;
                flag[i] = k;
            }
            while (length > 0)
                pattern[--top] = pattern[--length];
        }
        double d = y[k];
        y[k] = z[k] = 0;
        for (; top < UNKNOWNS; top++) {
            int i = pattern[top], end = s->start[i] + count[i];
            double yi = y[i], zi = z[i];
            y[i] = z[i] = 0;
            for (int p = s->start[i]; p < end; p++)
                y[s->row[p]] -= lower[p] * yi;
            if (!SYMMETRIC)
                for (int p = s->start[i]; p < end; p++)
                    z[s->row[p]] -= upper[p] * zi;
            else
                zi = yi;
            d -= zi * yi / pivot[i];
            s->row[end] = k;
            lower[end] = zi / pivot[i];
            upper[end] = yi / pivot[i];
            count[i]++;
        }
        pivot[k] = d;
        bad = !(fabs(d) > 0);
    }
    free(flag);
    free(pattern);
    free(count);
    free(parent);
    free(y);
    free(z);
    return bad;
}

/* Factors in double precision, kept in that of the model. */
static int solver_make(solver *s, const fill *shared, const real *a, const short *by, const real (*coefficient)[2], int count)
{
    size_t n = UNKNOWNS, entries = (size_t)shared->start[UNKNOWNS];
    double *lower = fresh(entries, sizeof *lower), *pivot = fresh(n, sizeof *pivot);
    double *upper = SYMMETRIC ? lower : fresh(entries, sizeof *upper);
    s->lower = fresh(entries, sizeof *s->lower);
    s->upper = SYMMETRIC ? s->lower : fresh(entries, sizeof *s->upper);
    s->inverse = fresh(n, sizeof *s->inverse);
    int bad = lower == NULL || upper == NULL || pivot == NULL || s->lower == NULL || s->upper == NULL || s->inverse == NULL;
    bad = bad || factorise(shared, a, by, lower, upper, pivot);
    for (size_t p = 0; !bad && p < entries; p++) {
        s->lower[p] = (real)lower[p];
        s->upper[p] = (real)upper[p];
    }
    for (size_t k = 0; !bad && k < n; k++)
        s->inverse[k] = (real)(1 / pivot[k]);
    if (!SYMMETRIC)
        free(upper);
    free(lower);
    free(pivot);
    (void)coefficient;
    (void)count;
    return bad;
}

static void solver_free(solver *s)
{
    if (!SYMMETRIC)
        free(s->upper);
    free(s->lower);
    free(s->inverse);
}

/* x = A^-1 b, where x may be b; work is not used. */
static void solve(const solver *s, const fill *shared, const real *b, real *x, real *work)
{
    const int *start = shared->start, *row = shared->row;
    (void)work;
    if (x != b)
        memcpy(x, b, UNKNOWNS * sizeof *x);
    for (int k = 0; k < UNKNOWNS; k++) {
        const real xk = x[k];
        for (int p = start[k]; p < start[k + 1]; p++)
            x[row[p]] -= s->lower[p] * xk;
        x[k] = xk * s->inverse[k];
    }
    for (int k = UNKNOWNS - 1; k >= 0; k--) {
        real even = 0, odd = 0;
        int p = start[k];
        for (; p + 1 < start[k + 1]; p += 2) {
            even += s->upper[p] * x[row[p]];
            odd += s->upper[p + 1] * x[row[p + 1]];
        }
        if (p < start[k + 1])
            even += s->upper[p] * x[row[p]];
        x[k] -= even + odd;
    }
}
#else
/* A fixed number of Chebyshev iterations, enough for the tolerance by proven bounds of the spectrum. */
typedef struct {
    real *value, *weight;
    const real (*coefficient)[2];
    int count;
} solver;

typedef struct {
    int *start, *row; /* not used */
} fill;

static int fill_make(fill *s)
{
    s->start = s->row = NULL;
    return 0;
}

static int solver_make(solver *s, const fill *shared, const real *a, const short *by, const real (*coefficient)[2], int count)
{
    (void)shared;
    s->value = fresh(ENTRIES, sizeof *s->value);
    s->weight = fresh(UNKNOWNS, sizeof *s->weight);
    s->coefficient = coefficient;
    s->count = count;
    if (s->value == NULL || s->weight == NULL)
        return 1;
    for (int i = 0; i < UNKNOWNS; i++)
        for (int p = row_start[i]; p < row_start[i + 1]; p++) {
            s->value[p] = (real)eliminated(a, by, i, p);
            if (column[p] == i)
                s->weight[i] = 1 / s->value[p];
        }
    return 0;
}

static void solver_free(solver *s)
{
    free(s->value);
    free(s->weight);
}

/* x = A^-1 b, where x must not be b; work [2][UNKNOWNS]. */
static void solve(const solver *s, const fill *shared, const real *b, real *x, real *work)
{
    real *p = work, *r = work + UNKNOWNS;
    (void)shared;
    for (int i = 0; i < UNKNOWNS; i++) {
        x[i] = p[i] = 0;
        r[i] = b[i];
    }
    for (int k = 0; k < s->count; k++) {
        const real alpha = s->coefficient[k][0], beta = s->coefficient[k][1];
        for (int i = 0; i < UNKNOWNS; i++) {
            p[i] = beta * p[i] + s->weight[i] * r[i];
            x[i] += alpha * p[i];
        }
        for (int i = 0; k + 1 < s->count && i < UNKNOWNS; i++) {
            real sum = b[i];
            for (int q = row_start[i]; q < row_start[i + 1]; q++)
                sum -= s->value[q] * x[column[q]];
            r[i] = sum;
        }
    }
}
#endif

/* ---------------------------------------------------------------------- model */

struct @name@_model {
    real *state, *source;                             /* [NODES][FIELDS] */
    real *spots;                                      /* [NODES + EDGES][FIELDS]: at nodes, then at the middles of edges */
    real *memory, *middle;                            /* [FIELDS][EDGES], [EDGES] */
    real *x, *f, *right, *trial, *guess, *load, *work; /* [FIELDS][UNKNOWNS] each */
    real *rate;                                       /* [2][RATES][FIELDS][UNKNOWNS] */
    real boundary[CONDITIONS + 1];
    fill shared;
    solver solvers[STAGES][GROUPS];
    int steps;
};

static const short *fixed_rows(int f)
{
    return FIXED ? fixed_by + (FIXED > 1 ? (size_t)f * UNKNOWNS : 0) : NULL;
}

static void boundary_load(@name@_model *m)
{
    memset(m->load, 0, (size_t)FIELDS * UNKNOWNS * sizeof *m->load);
    for (int k = 0; k < CONDITIONS; k++)
        for (int p = load_start[k]; p < load_start[k + 1]; p++)
            m->load[load_at[p]] += m->boundary[k] * load_weight[p];
}

@name@_model *@name@_new(void)
{
    const size_t all = (size_t)FIELDS * UNKNOWNS;
    @name@_model *m = fresh(1, sizeof *m);
    if (m == NULL)
        return NULL;
    m->state = fresh((size_t)NODES * FIELDS, sizeof *m->state);
    m->source = fresh((size_t)NODES * FIELDS, sizeof *m->source);
    real **arrays[] = {&m->x, &m->f, &m->right, &m->trial, &m->guess, &m->load};
    int bad = m->state == NULL || m->source == NULL;
    for (size_t k = 0; k < sizeof arrays / sizeof *arrays; k++) {
        *arrays[k] = fresh(all, sizeof **arrays[k]);
        bad = bad || *arrays[k] == NULL;
    }
    m->spots = fresh((size_t)(NODES + EDGES) * FIELDS, sizeof *m->spots);
    m->memory = fresh((size_t)FIELDS * EDGES, sizeof *m->memory);
    m->middle = fresh(EDGES, sizeof *m->middle);
    bad = bad || m->spots == NULL || m->memory == NULL || m->middle == NULL;
    m->work = fresh(2 * (size_t)UNKNOWNS, sizeof *m->work);
    m->rate = fresh(2 * RATES * all, sizeof *m->rate);
    bad = bad || m->work == NULL || m->rate == NULL || fill_make(&m->shared);
    for (int s = 0; s < STAGES && !bad; s++)
        for (int g = 0; g < GROUPS && !bad; g++)
            bad = solver_make(&m->solvers[s][g], &m->shared, values(stages[s].full, g), fixed_rows(g), stages[s].coefficient,
                              stages[s].count);
    if (bad) {
        @name@_free(m);
        return NULL;
    }
    for (int i = 0; i < NODES * FIELDS; i++)
        m->state[i] = offset[i % FIELDS];
    memcpy(m->boundary, boundary_value, sizeof m->boundary);
    boundary_load(m);
    return m;
}

void @name@_free(@name@_model *m)
{
    if (m == NULL)
        return;
    for (int s = 0; s < STAGES; s++)
        for (int g = 0; g < GROUPS; g++)
            solver_free(&m->solvers[s][g]);
    real *arrays[] = {m->state, m->source, m->spots, m->memory, m->middle, m->x,   m->f,
                      m->right, m->trial,  m->guess, m->load,   m->work,   m->rate};
    for (size_t k = 0; k < sizeof arrays / sizeof *arrays; k++)
        free(arrays[k]);
    free(m->shared.start);
    free(m->shared.row);
    free(m);
}

real *@name@_state(@name@_model *m)
{
    return m->state;
}

real *@name@_source(@name@_model *m)
{
    return m->source;
}

double @name@_time(const @name@_model *m)
{
    return m->steps * @NAME@_DT;
}

void @name@_restart(@name@_model *m)
{
    m->steps = 0;
}

const real *@name@_points(void)
{
    return points;
}

const char *@name@_boundary(int number)
{
    return number >= 0 && number < CONDITIONS ? boundary_name[number] : NULL;
}

void @name@_set_boundary(@name@_model *m, int number, real value)
{
    if (number < 0 || number >= CONDITIONS || m->boundary[number] == value)
        return;
    m->boundary[number] = value;
    boundary_load(m);
}

real @name@_get_boundary(const @name@_model *m, int number)
{
    return number >= 0 && number < CONDITIONS ? m->boundary[number] : 0;
}

void @name@_clear_spots(@name@_model *m)
{
    memset(m->spots, 0, (size_t)(NODES + EDGES) * FIELDS * sizeof *m->spots);
}

void @name@_spot(@name@_model *m, int field, const real *from, const real *to, real radius, real power)
{
    static const real gauss[4] = {(real)-0.8611363115940526, (real)-0.3399810435848563, (real)0.3399810435848563,
                                  (real)0.8611363115940526};
    static const real share[4] = {(real)0.3478548451374538, (real)0.6521451548625461, (real)0.6521451548625461,
                                  (real)0.3478548451374538};
    real way = 0, inverse = 1 / (2 * radius * radius);
    if (!(radius > 0) || power == 0 || field < 0 || field >= FIELDS)
        return;
    for (int d = 0; d < DIM; d++)
        way += (to[d] - from[d]) * (to[d] - from[d]);
    way = (real)sqrt((double)way);
    const int moves = way > 0, pieces = moves && way > radius ? (int)ceil((double)(way / radius)) : 1;
    for (int piece = 0; piece < pieces; piece++)
        for (int g = 0; g < (moves ? 4 : 1); g++) {
            const real at = moves ? (piece + (1 + gauss[g]) / 2) / pieces : 0, weight = moves ? power * share[g] / (2 * pieces) : power;
            for (int i = 0; i < NODES + EDGES; i++) {
                real square = 0;
                for (int d = 0; d < DIM; d++) {
                    const real gap = points[i * DIM + d] - from[d] - at * (to[d] - from[d]);
                    square += gap * gap;
                }
                if (square * inverse < 60)
                    m->spots[i * FIELDS + field] += weight * (real)exp((double)(-square * inverse));
            }
        }
}

/* ---------------------------------------------------------------------- step */

/* to = u + A^-1 right for one field, whose increment at fixed unknowns is known beforehand; right is changed. */
static void advance(@name@_model *m, const stage *s, const solver *A, int f, const real *u, real *right, real *to)
{
    const short *by = fixed_rows(f);
    if (by != NULL) {
        real *gap = m->work;
        int any = 0;
        for (int i = 0; i < UNKNOWNS; i++) {
            gap[i] = by[i] >= 0 ? m->boundary[by[i]] - u[i] : 0;
            any = any || gap[i] != 0;
        }
        if (any)
            add_product(values(s->full, f), gap, 0, -1, right);
        for (int i = 0; i < UNKNOWNS; i++)
            if (by[i] >= 0)
                right[i] = gap[i];
    }
    solve(A, &m->shared, right, to, m->work);
    for (int i = 0; i < UNKNOWNS; i++)
        to[i] = by != NULL && by[i] >= 0 ? m->boundary[by[i]] : to[i] + u[i];
}

#if RATES
/* All rates at all unknowns: u [FIELDS][UNKNOWNS] -> out [RATES][FIELDS][UNKNOWNS] */
static void all_rates(const real *u, real *out)
{
    real here[FIELDS], r[RATES * FIELDS];
    for (int i = 0; i < UNKNOWNS; i++) {
        for (int f = 0; f < FIELDS; f++)
            here[f] = u[(size_t)f * UNKNOWNS + i];
        rates(here, r);
        for (int k = 0; k < RATES * FIELDS; k++)
            out[(size_t)k * UNKNOWNS + i] = r[k];
    }
}

static void add_rates(const stage *s, const real *rate, int f, real *right)
{
    for (int k = 0; k < RATES; k++)
        add_product(values(s->gather[k], f), rate + (size_t)(k * FIELDS + f) * UNKNOWNS, 0, (real)@NAME@_DT, right);
}
#endif

#if EDGES
/* Values at the middles of the edges, fitted to those at the nodes around. */
static void fit_middles(const real *nodes, int f, real *middle)
{
    const real level = nodes[f];
    for (int e = 0; e < EDGES; e++) {
        real s = 0;
        for (int p = fit_start[e]; p < fit_start[e + 1]; p++)
            s += fit_weight[p] * (nodes[fit_node[p] * FIELDS + f] - level);
        middle[e] = level + s;
    }
}

/* How far a middle is from the mean of the ends of its edge. */
static real bend(const real *nodes, const real *middle, int f, int e)
{
    return middle[e] - (nodes[edge_end[2 * e] * FIELDS + f] + nodes[edge_end[2 * e + 1] * FIELDS + f]) / 2;
}

/* What a field's nodes gather of the edges around: their memory of what the nodes do not see, and the source at their middles. */
static void add_edges(@name@_model *m, int f, int driven, real *right)
{
    real *memory = m->memory + (size_t)f * EDGES, *middle = m->middle;
    if (m->steps == 0) {
        fit_middles(m->state, f, middle);
        for (int e = 0; e < EDGES; e++)
            memory[e] = bend(m->state, middle, f, e);
    }
    if (driven) {
        fit_middles(m->source, f, middle);
        for (int e = 0; e < EDGES; e++)
            middle[e] += m->spots[(NODES + e) * FIELDS + f];
    } else
        memset(middle, 0, EDGES * sizeof *middle);
    for (int i = 0; i < UNKNOWNS; i++) {
        real s = 0;
        for (int p = around_start[i]; p < around_start[i + 1]; p++)
            s += around_memory[p] * memory[around[p]] + around_middle[p] * middle[around[p]];
        right[i] += s;
    }
    for (int e = 0; e < EDGES; e++) {
        memory[e] *= edge_keep[e];
        if (driven) {
            memory[e] += edge_gain[e] * bend(m->source, middle, f, e);
            memory[e] -= edge_gain[e] * (m->spots[edge_end[2 * e] * FIELDS + f] + m->spots[edge_end[2 * e + 1] * FIELDS + f]) / 2;
        }
    }
}
#endif

#if CHANGES
/* x += M^-1 D x */
static int apply_change(@name@_model *m, const change *c)
{
    for (int f = 0; f < FIELDS; f++) {
        real *x = m->x + (size_t)f * UNKNOWNS;
        solver M;
        const int bad = solver_make(&M, &m->shared, values(c->mass, f), NULL, c->coefficient, c->count);
        if (!bad) {
            memset(m->right, 0, UNKNOWNS * sizeof *m->right);
            add_product(values(c->difference, f), x, 0, 1, m->right);
            solve(&M, &m->shared, m->right, m->trial, m->work);
            for (int i = 0; i < UNKNOWNS; i++)
                x[i] += m->trial[i];
        }
        solver_free(&M);
        if (bad)
            return 1;
    }
    return 0;
}
#endif

int @name@_step(@name@_model *m)
{
    const int now = STAGES > 1 && m->steps < EARLY_STEPS ? 0 : STAGES - 1;
    const stage *s = &stages[now];
    int driven = 0;
    for (int f = 0; f < FIELDS; f++)
        for (int i = 0; i < UNKNOWNS; i++) {
            const size_t at = (size_t)f * UNKNOWNS + i;
            m->x[at] = m->state[owner[i] * FIELDS + f];
            m->f[at] = m->source[owner[i] * FIELDS + f] + m->spots[owner[i] * FIELDS + f];
            driven = driven || m->f[at] != 0;
        }
#if CHANGES
    for (int k = 0; k < CHANGES; k++)
        if (m->steps == change_at[k] && apply_change(m, &changes[k]))
            return 1;
#endif
    for (int f = 0; f < FIELDS; f++) {
        const size_t at = (size_t)f * UNKNOWNS;
        real *x = m->x + at, *right = m->right + at;
        const real c = x[PIVOT];
        for (int i = 0; i < UNKNOWNS; i++)
            right[i] = m->load[at + i] + (s->sums == NULL ? 0 : c * s->sums[at + i]);
        add_product(values(s->explicit_part, f), x, c, 1, right);
        if (driven)
            add_product(values(s->source, f), m->f + at, 0, (real)@NAME@_DT, right);
#if EDGES
        add_edges(m, f, driven, right);
#endif
    }
#if RATES
    real *later = m->rate + (size_t)RATES * FIELDS * UNKNOWNS;
    all_rates(m->x, m->rate);
    for (int f = 0; f < FIELDS; f++) {
        const size_t at = (size_t)f * UNKNOWNS;
        memcpy(m->trial + at, m->right + at, UNKNOWNS * sizeof *m->trial);
        add_rates(s, m->rate, f, m->trial + at);
        advance(m, s, &m->solvers[now][GROUPS > 1 ? f : 0], f, m->x + at, m->trial + at, m->guess + at);
    }
    all_rates(m->guess, later);
    for (size_t i = 0; i < (size_t)RATES * FIELDS * UNKNOWNS; i++)
        m->rate[i] = (m->rate[i] + later[i]) / 2;
    for (int f = 0; f < FIELDS; f++)
        add_rates(s, m->rate, f, m->right + (size_t)f * UNKNOWNS);
#endif
    real sum = 0;
    for (int f = 0; f < FIELDS; f++) {
        const size_t at = (size_t)f * UNKNOWNS;
        advance(m, s, &m->solvers[now][GROUPS > 1 ? f : 0], f, m->x + at, m->right + at, m->guess + at);
        for (int i = 0; i < UNKNOWNS; i++)
            sum += m->guess[at + i];
    }
    for (int i = 0; i < NODES; i++)
        for (int f = 0; f < FIELDS; f++)
            m->state[i * FIELDS + f] = m->guess[(size_t)f * UNKNOWNS + unknown[i]];
    m->steps++;
    return !(sum - sum == 0);
}
