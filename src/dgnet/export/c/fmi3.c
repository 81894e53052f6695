
/* ---------------------------------------------------------------------- FMI 3.0, co-simulation */

typedef void *fmi3Instance;
typedef void *fmi3InstanceEnvironment;
typedef void *fmi3FMUState;
typedef uint32_t fmi3ValueReference;
typedef float fmi3Float32;
typedef double fmi3Float64;
typedef int8_t fmi3Int8;
typedef uint8_t fmi3UInt8;
typedef int16_t fmi3Int16;
typedef uint16_t fmi3UInt16;
typedef int32_t fmi3Int32;
typedef uint32_t fmi3UInt32;
typedef int64_t fmi3Int64;
typedef uint64_t fmi3UInt64;
typedef bool fmi3Boolean;
typedef const char *fmi3String;
typedef uint8_t fmi3Byte;
typedef const fmi3Byte *fmi3Binary;
typedef bool fmi3Clock;
typedef enum { fmi3OK, fmi3Warning, fmi3Discard, fmi3Error, fmi3Fatal } fmi3Status;
typedef enum { fmi3Independent, fmi3Constant, fmi3Fixed, fmi3Tunable, fmi3Discrete, fmi3Dependent } fmi3DependencyKind;
typedef enum { fmi3IntervalNotYetKnown, fmi3IntervalUnchanged, fmi3IntervalChanged } fmi3IntervalQualifier;
typedef void (*fmi3LogMessageCallback)(fmi3InstanceEnvironment, fmi3Status, fmi3String, fmi3String);
typedef void (*fmi3ClockUpdateCallback)(fmi3InstanceEnvironment);
typedef void (*fmi3IntermediateUpdateCallback)(fmi3InstanceEnvironment, fmi3Float64, fmi3Boolean, fmi3Boolean, fmi3Boolean,
                                               fmi3Boolean, fmi3Boolean *, fmi3Float64 *);
typedef void (*fmi3PreemptionCallback)(void);

EXPORT const char *fmi3GetVersion(void)
{
    return "3.0";
}

EXPORT fmi3Status fmi3SetDebugLogging(fmi3Instance c, fmi3Boolean on, size_t n, const fmi3String categories[])
{
    return fmi3OK;
}

EXPORT fmi3Instance fmi3InstantiateCoSimulation(fmi3String name, fmi3String given, fmi3String resources, fmi3Boolean visible,
                                                fmi3Boolean logging, fmi3Boolean events, fmi3Boolean early,
                                                const fmi3ValueReference required[], size_t n, fmi3InstanceEnvironment environment,
                                                fmi3LogMessageCallback log, fmi3IntermediateUpdateCallback update)
{
    fmu_unit *u = fmu_unit_new(given);
    if (u == NULL && log != NULL)
        log(environment, fmi3Error, "error", "wrong instantiation token, or no memory");
    return u;
}

EXPORT fmi3Instance fmi3InstantiateModelExchange(fmi3String name, fmi3String given, fmi3String resources, fmi3Boolean visible,
                                                 fmi3Boolean logging, fmi3InstanceEnvironment environment,
                                                 fmi3LogMessageCallback log)
{
    return NULL;
}

EXPORT fmi3Instance fmi3InstantiateScheduledExecution(fmi3String name, fmi3String given, fmi3String resources, fmi3Boolean visible,
                                                      fmi3Boolean logging, fmi3InstanceEnvironment environment,
                                                      fmi3LogMessageCallback log, fmi3ClockUpdateCallback update,
                                                      fmi3PreemptionCallback lock, fmi3PreemptionCallback unlock)
{
    return NULL;
}

EXPORT void fmi3FreeInstance(fmi3Instance c)
{
    fmu_unit_free(c);
}

EXPORT fmi3Status fmi3EnterInitializationMode(fmi3Instance c, fmi3Boolean tolerance_given, fmi3Float64 tolerance,
                                              fmi3Float64 start, fmi3Boolean stop_given, fmi3Float64 stop)
{
    fmu_unit *u = c;
    u->begin = u->time = start;
    return fmi3OK;
}

EXPORT fmi3Status fmi3ExitInitializationMode(fmi3Instance c)
{
    fmu_unit *u = c;
    fmu_unit_begin(u);
    u->running = true;
    return fmi3OK;
}

EXPORT fmi3Status fmi3Terminate(fmi3Instance c)
{
    return fmi3OK;
}

EXPORT fmi3Status fmi3Reset(fmi3Instance c)
{
    fmu_unit_reset(c);
    return fmi3OK;
}

EXPORT fmi3Status fmi3GetFloat64(fmi3Instance c, const fmi3ValueReference r[], size_t n, fmi3Float64 v[], size_t m)
{
    return n != m || fmu_unit_get(c, r, n, v) ? fmi3Error : fmi3OK;
}

EXPORT fmi3Status fmi3SetFloat64(fmi3Instance c, const fmi3ValueReference r[], size_t n, const fmi3Float64 v[], size_t m)
{
    return n != m || fmu_unit_set(c, r, n, v) ? fmi3Error : fmi3OK;
}

EXPORT fmi3Status fmi3DoStep(fmi3Instance c, fmi3Float64 now, fmi3Float64 length, fmi3Boolean no_way_back, fmi3Boolean *event,
                             fmi3Boolean *terminate, fmi3Boolean *early, fmi3Float64 *last)
{
    const int bad = fmu_unit_advance(c, now, length);
    *event = *early = false;
    *terminate = bad;
    *last = bad ? now : now + length;
    return bad ? fmi3Error : fmi3OK;
}

/* There are numbers of type Float64 only, and nothing that the flags of modelDescription.xml do not offer. */
#define NO_VARIABLES(TYPE)                                                                                                       \
    EXPORT fmi3Status fmi3Get##TYPE(fmi3Instance c, const fmi3ValueReference r[], size_t n, fmi3##TYPE v[], size_t m)           \
    {                                                                                                                            \
        return n ? fmi3Error : fmi3OK;                                                                                           \
    }                                                                                                                            \
    EXPORT fmi3Status fmi3Set##TYPE(fmi3Instance c, const fmi3ValueReference r[], size_t n, const fmi3##TYPE v[], size_t m)     \
    {                                                                                                                            \
        return n ? fmi3Error : fmi3OK;                                                                                           \
    }
NO_VARIABLES(Float32)
NO_VARIABLES(Int8)
NO_VARIABLES(UInt8)
NO_VARIABLES(Int16)
NO_VARIABLES(UInt16)
NO_VARIABLES(Int32)
NO_VARIABLES(UInt32)
NO_VARIABLES(Int64)
NO_VARIABLES(UInt64)
NO_VARIABLES(Boolean)
NO_VARIABLES(String)

#define NOT_OFFERED(NAME, ...)                                                                                                   \
    EXPORT fmi3Status NAME(__VA_ARGS__)                                                                                          \
    {                                                                                                                            \
        return fmi3Error;                                                                                                        \
    }
#define LIST fmi3Instance c, const fmi3ValueReference r[], size_t n
NOT_OFFERED(fmi3GetBinary, LIST, size_t sizes[], fmi3Binary v[], size_t m)
NOT_OFFERED(fmi3SetBinary, LIST, const size_t sizes[], const fmi3Binary v[], size_t m)
NOT_OFFERED(fmi3GetClock, LIST, fmi3Clock v[])
NOT_OFFERED(fmi3SetClock, LIST, const fmi3Clock v[])
NOT_OFFERED(fmi3GetNumberOfVariableDependencies, fmi3Instance c, fmi3ValueReference r, size_t *n)
NOT_OFFERED(fmi3GetVariableDependencies, fmi3Instance c, fmi3ValueReference r, size_t i[], fmi3ValueReference s[], size_t j[],
            fmi3DependencyKind k[], size_t n)
NOT_OFFERED(fmi3GetFMUState, fmi3Instance c, fmi3FMUState *s)
NOT_OFFERED(fmi3SetFMUState, fmi3Instance c, fmi3FMUState s)
NOT_OFFERED(fmi3FreeFMUState, fmi3Instance c, fmi3FMUState *s)
NOT_OFFERED(fmi3SerializedFMUStateSize, fmi3Instance c, fmi3FMUState s, size_t *n)
NOT_OFFERED(fmi3SerializeFMUState, fmi3Instance c, fmi3FMUState s, fmi3Byte b[], size_t n)
NOT_OFFERED(fmi3DeserializeFMUState, fmi3Instance c, const fmi3Byte b[], size_t n, fmi3FMUState *s)
NOT_OFFERED(fmi3GetDirectionalDerivative, LIST, const fmi3ValueReference s[], size_t m, const fmi3Float64 x[], size_t k,
            fmi3Float64 y[], size_t l)
NOT_OFFERED(fmi3GetAdjointDerivative, LIST, const fmi3ValueReference s[], size_t m, const fmi3Float64 x[], size_t k, fmi3Float64 y[],
            size_t l)
NOT_OFFERED(fmi3EnterEventMode, fmi3Instance c)
NOT_OFFERED(fmi3EnterStepMode, fmi3Instance c)
NOT_OFFERED(fmi3EnterConfigurationMode, fmi3Instance c)
NOT_OFFERED(fmi3ExitConfigurationMode, fmi3Instance c)
NOT_OFFERED(fmi3GetIntervalDecimal, LIST, fmi3Float64 v[], fmi3IntervalQualifier q[])
NOT_OFFERED(fmi3GetIntervalFraction, LIST, fmi3UInt64 a[], fmi3UInt64 b[], fmi3IntervalQualifier q[])
NOT_OFFERED(fmi3GetShiftDecimal, LIST, fmi3Float64 v[])
NOT_OFFERED(fmi3GetShiftFraction, LIST, fmi3UInt64 a[], fmi3UInt64 b[])
NOT_OFFERED(fmi3SetIntervalDecimal, LIST, const fmi3Float64 v[])
NOT_OFFERED(fmi3SetIntervalFraction, LIST, const fmi3UInt64 a[], const fmi3UInt64 b[])
NOT_OFFERED(fmi3SetShiftDecimal, LIST, const fmi3Float64 v[])
NOT_OFFERED(fmi3SetShiftFraction, LIST, const fmi3UInt64 a[], const fmi3UInt64 b[])
NOT_OFFERED(fmi3EvaluateDiscreteStates, fmi3Instance c)
NOT_OFFERED(fmi3UpdateDiscreteStates, fmi3Instance c, fmi3Boolean *a, fmi3Boolean *b, fmi3Boolean *d, fmi3Boolean *e,
            fmi3Boolean *f, fmi3Float64 *t)
NOT_OFFERED(fmi3EnterContinuousTimeMode, fmi3Instance c)
NOT_OFFERED(fmi3CompletedIntegratorStep, fmi3Instance c, fmi3Boolean a, fmi3Boolean *b, fmi3Boolean *d)
NOT_OFFERED(fmi3SetTime, fmi3Instance c, fmi3Float64 t)
NOT_OFFERED(fmi3SetContinuousStates, fmi3Instance c, const fmi3Float64 v[], size_t n)
NOT_OFFERED(fmi3GetContinuousStateDerivatives, fmi3Instance c, fmi3Float64 v[], size_t n)
NOT_OFFERED(fmi3GetEventIndicators, fmi3Instance c, fmi3Float64 v[], size_t n)
NOT_OFFERED(fmi3GetContinuousStates, fmi3Instance c, fmi3Float64 v[], size_t n)
NOT_OFFERED(fmi3GetNominalsOfContinuousStates, fmi3Instance c, fmi3Float64 v[], size_t n)
NOT_OFFERED(fmi3GetNumberOfEventIndicators, fmi3Instance c, size_t *n)
NOT_OFFERED(fmi3GetNumberOfContinuousStates, fmi3Instance c, size_t *n)
NOT_OFFERED(fmi3GetOutputDerivatives, LIST, const fmi3Int32 o[], fmi3Float64 v[], size_t m)
NOT_OFFERED(fmi3ActivateModelPartition, fmi3Instance c, fmi3ValueReference r, fmi3Float64 t)
