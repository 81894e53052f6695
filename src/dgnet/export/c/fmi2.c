
/* ---------------------------------------------------------------------- FMI 2.0, co-simulation */

typedef void *fmi2Component;
typedef void *fmi2ComponentEnvironment;
typedef void *fmi2FMUstate;
typedef unsigned int fmi2ValueReference;
typedef double fmi2Real;
typedef int fmi2Integer;
typedef int fmi2Boolean;
typedef const char *fmi2String;
typedef char fmi2Byte;
typedef enum { fmi2OK, fmi2Warning, fmi2Discard, fmi2Error, fmi2Fatal, fmi2Pending } fmi2Status;
typedef enum { fmi2ModelExchange, fmi2CoSimulation } fmi2Type;
typedef enum { fmi2DoStepStatus, fmi2PendingStatus, fmi2LastSuccessfulTime, fmi2Terminated } fmi2StatusKind;
typedef struct {
    void (*logger)(fmi2ComponentEnvironment, fmi2String, fmi2Status, fmi2String, fmi2String, ...);
    void *(*allocateMemory)(size_t, size_t);
    void (*freeMemory)(void *);
    void (*stepFinished)(fmi2ComponentEnvironment, fmi2Status);
    fmi2ComponentEnvironment componentEnvironment;
} fmi2CallbackFunctions;

EXPORT const char *fmi2GetTypesPlatform(void)
{
    return "default";
}

EXPORT const char *fmi2GetVersion(void)
{
    return "2.0";
}

EXPORT fmi2Status fmi2SetDebugLogging(fmi2Component c, fmi2Boolean on, size_t n, const fmi2String categories[])
{
    return fmi2OK;
}

EXPORT fmi2Component fmi2Instantiate(fmi2String name, fmi2Type type, fmi2String guid, fmi2String resources,
                                     const fmi2CallbackFunctions *functions, fmi2Boolean visible, fmi2Boolean logging)
{
    fmu_unit *u = type == fmi2CoSimulation ? fmu_unit_new(guid) : NULL;
    if (u == NULL && functions != NULL && functions->logger != NULL)
        functions->logger(functions->componentEnvironment, name, fmi2Error, "error", "wrong GUID or kind, or no memory");
    return u;
}

EXPORT void fmi2FreeInstance(fmi2Component c)
{
    fmu_unit_free(c);
}

EXPORT fmi2Status fmi2SetupExperiment(fmi2Component c, fmi2Boolean tolerance_given, fmi2Real tolerance, fmi2Real start,
                                      fmi2Boolean stop_given, fmi2Real stop)
{
    fmu_unit *u = c;
    u->begin = u->time = start;
    return fmi2OK;
}

EXPORT fmi2Status fmi2EnterInitializationMode(fmi2Component c)
{
    return fmi2OK;
}

EXPORT fmi2Status fmi2ExitInitializationMode(fmi2Component c)
{
    fmu_unit *u = c;
    fmu_unit_begin(u);
    u->running = true;
    return fmi2OK;
}

EXPORT fmi2Status fmi2Terminate(fmi2Component c)
{
    return fmi2OK;
}

EXPORT fmi2Status fmi2Reset(fmi2Component c)
{
    fmu_unit_reset(c);
    return fmi2OK;
}

EXPORT fmi2Status fmi2GetReal(fmi2Component c, const fmi2ValueReference r[], size_t n, fmi2Real v[])
{
    return fmu_unit_get(c, r, n, v) ? fmi2Error : fmi2OK;
}

EXPORT fmi2Status fmi2SetReal(fmi2Component c, const fmi2ValueReference r[], size_t n, const fmi2Real v[])
{
    return fmu_unit_set(c, r, n, v) ? fmi2Error : fmi2OK;
}

EXPORT fmi2Status fmi2DoStep(fmi2Component c, fmi2Real now, fmi2Real length, fmi2Boolean no_way_back)
{
    return fmu_unit_advance(c, now, length) ? fmi2Error : fmi2OK;
}

/* There are real numbers only, and nothing that the flags of modelDescription.xml do not offer. */
#define NO_VARIABLES(TYPE)                                                                                              \
    EXPORT fmi2Status fmi2Get##TYPE(fmi2Component c, const fmi2ValueReference r[], size_t n, fmi2##TYPE v[])           \
    {                                                                                                                   \
        return n ? fmi2Error : fmi2OK;                                                                                  \
    }                                                                                                                   \
    EXPORT fmi2Status fmi2Set##TYPE(fmi2Component c, const fmi2ValueReference r[], size_t n, const fmi2##TYPE v[])     \
    {                                                                                                                   \
        return n ? fmi2Error : fmi2OK;                                                                                  \
    }
NO_VARIABLES(Integer)
NO_VARIABLES(Boolean)
NO_VARIABLES(String)

#define NOT_OFFERED(NAME, ...)                                                                                          \
    EXPORT fmi2Status NAME(__VA_ARGS__)                                                                                 \
    {                                                                                                                   \
        return fmi2Error;                                                                                               \
    }
NOT_OFFERED(fmi2GetFMUstate, fmi2Component c, fmi2FMUstate *s)
NOT_OFFERED(fmi2SetFMUstate, fmi2Component c, fmi2FMUstate s)
NOT_OFFERED(fmi2FreeFMUstate, fmi2Component c, fmi2FMUstate *s)
NOT_OFFERED(fmi2SerializedFMUstateSize, fmi2Component c, fmi2FMUstate s, size_t *n)
NOT_OFFERED(fmi2SerializeFMUstate, fmi2Component c, fmi2FMUstate s, fmi2Byte b[], size_t n)
NOT_OFFERED(fmi2DeSerializeFMUstate, fmi2Component c, const fmi2Byte b[], size_t n, fmi2FMUstate *s)
NOT_OFFERED(fmi2GetDirectionalDerivative, fmi2Component c, const fmi2ValueReference a[], size_t n, const fmi2ValueReference b[],
            size_t m, const fmi2Real x[], fmi2Real y[])
NOT_OFFERED(fmi2SetRealInputDerivatives, fmi2Component c, const fmi2ValueReference r[], size_t n, const fmi2Integer o[],
            const fmi2Real v[])
NOT_OFFERED(fmi2GetRealOutputDerivatives, fmi2Component c, const fmi2ValueReference r[], size_t n, const fmi2Integer o[],
            fmi2Real v[])
NOT_OFFERED(fmi2CancelStep, fmi2Component c)
NOT_OFFERED(fmi2GetStatus, fmi2Component c, const fmi2StatusKind k, fmi2Status *v)
NOT_OFFERED(fmi2GetIntegerStatus, fmi2Component c, const fmi2StatusKind k, fmi2Integer *v)
NOT_OFFERED(fmi2GetBooleanStatus, fmi2Component c, const fmi2StatusKind k, fmi2Boolean *v)
NOT_OFFERED(fmi2GetStringStatus, fmi2Component c, const fmi2StatusKind k, fmi2String *v)

EXPORT fmi2Status fmi2GetRealStatus(fmi2Component c, const fmi2StatusKind k, fmi2Real *v)
{
    const fmu_unit *u = c;
    *v = u->time;
    return k == fmi2LastSuccessfulTime ? fmi2OK : fmi2Error;
}
